"""Reads the trials of a database of dsat through its views (docs/schema.md)."""
from __future__ import annotations

import html
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

# As in db/schema.h.
_APPLICATION_ID = 0x64736131
_SCHEMA_VERSION = 2


@dataclass(frozen=True)
class TrialResult:
    """One trial: a row of the view trial_metrics, and the settings that it changed.

    Metrics are None if they were not measured.
    """

    experiment: int
    trial: int
    kind: str  # profile, submitted, search, confirm, reference, soak or larger.
    confirms: Optional[int]  # The trial that a trial of the last four kinds runs again.
    state: str  # running, succeeded, infeasible, failed or stopped.
    zero_stage: int
    micro_batch_size: Optional[int]
    accumulation_steps: Optional[int]
    metric_value: Optional[float]  # The experiment's metric, in its own unit.
    metric_spread: Optional[float]
    gflops_per_gpu: Optional[float]
    samples_per_s: Optional[float]
    latency_ms: Optional[float]
    forward_ms: Optional[float]
    backward_ms: Optional[float]
    step_ms: Optional[float]
    peak_mib: Optional[float]
    loss: Optional[float]
    reason: str  # Why it ended that way.
    assignment: Dict[str, Any]  # JSON pointers of the keys that were set over the base config.
    ds_config: Dict[str, Any]
    is_best: bool


_JSON = ("assignment", "ds_config")
# The columns of the table in a notebook, those of them in which there is a value.
_SHOWN = ("experiment", "trial", "kind", "state", "zero_stage", "micro_batch_size",
          "accumulation_steps", "gflops_per_gpu", "samples_per_s", "latency_ms", "peak_mib",
          "assignment", "reason")
_QUERY = """
    SELECT m.*, b.trial IS NOT NULL AS is_best
    FROM trial_metrics AS m
    LEFT JOIN best_trials AS b ON b.experiment = m.experiment AND b.trial = m.trial
    WHERE :experiment IS NULL OR m.experiment = :experiment
    ORDER BY m.experiment, m.trial"""


class Results(List[TrialResult]):
    """A list of trials, which a notebook shows as a table."""

    def frame(self) -> Any:
        """Returns the trials as a pandas.DataFrame, one row per trial. Needs pandas."""
        import pandas
        columns = [field.name for field in fields(TrialResult)]
        return pandas.DataFrame([asdict(trial) for trial in self], columns=columns)

    def _repr_html_(self) -> str:
        shown = [name for name in _SHOWN
                 if any(getattr(trial, name) not in (None, "", {}) for trial in self)]
        lines = [f"<table><caption>{html.escape(self._caption())}</caption>",
                 f"<tr>{_html_cells('th', shown)}</tr>"]
        for trial in self:
            style = ' style="font-weight: bold"' if trial.is_best else ""
            cells = [_text(getattr(trial, name)) for name in shown]
            lines.append(f"<tr{style}>{_html_cells('td', cells)}</tr>")
        return "\n".join([*lines, "</table>"])

    def _caption(self) -> str:
        return f"{len(self)} trials"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key[1:]}={json.dumps(item)}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else str(value)


def _html_cells(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)


def database_path(path: "str | os.PathLike[str] | None") -> str:
    """The database file of a call: `path`, or DSAT_DB of the environment, or dsat.db."""
    return os.fspath(path if path is not None else os.environ.get("DSAT_DB") or "dsat.db")


def results(path: "str | os.PathLike[str] | None" = None,
            experiment: Union[int, str, None] = None) -> Results:
    """Returns the trials of a database, in the order of their numbers.

    Args:
        path: the database file, or the folder that holds dsat.db; by default DSAT_DB of the
            environment, or dsat.db. A search may be writing to it.
        experiment: the number or the name of one experiment (of several with this name the newest
            one); all of them by default.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a database of dsat, or of a version with other columns, or it
            has no such experiment.
    """
    import sqlite3
    file = Path(database_path(path))
    if file.is_dir():
        file = file / "dsat.db"
    if not file.exists():
        raise FileNotFoundError(f"{file}: there is no such database")
    file = file.resolve()
    # Without a -wal file nobody writes; SQLite could not make one in a folder that is read-only.
    is_alone = (not os.access(file.parent, os.W_OK, effective_ids=True)
                and not Path(f"{file}-wal").exists())
    connection = sqlite3.connect(f"{file.as_uri()}?{'immutable=1' if is_alone else 'mode=ro'}",
                                 uri=True)
    try:
        connection.row_factory = sqlite3.Row
        if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            raise ValueError(f"{file}: not a database of this version of dsat")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != _SCHEMA_VERSION:
            raise ValueError(
                f"{file}: schema version {version} is "
                + (f"newer than this package's, {_SCHEMA_VERSION}; install a newer one"
                   if version > _SCHEMA_VERSION else
                   f"older than this package's, {_SCHEMA_VERSION}; use the one that has made it"))
        number = None if experiment is None else _number_of(connection, experiment)
        rows = connection.execute(_QUERY, {"experiment": number}).fetchall()
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{file}: {error}; expected a database of this version of dsat") from error
    finally:
        connection.close()
    return Results(_result_of(row) for row in rows)


def _number_of(connection: Any, experiment: Union[int, str]) -> int:
    # As Store::FindExperiment in db/store.cc.
    found = connection.execute(
        "SELECT id FROM experiments WHERE CAST(id AS TEXT) = :it OR name = :it"
        " ORDER BY CAST(id AS TEXT) = :it DESC, method = 'check', id DESC LIMIT 1",
        {"it": str(experiment)}).fetchone()
    if found is None:
        known = connection.execute("SELECT id, name FROM experiments ORDER BY id")
        names = ", ".join(f"{row['id']} ({row['name']})" for row in known) or "none"
        raise ValueError(f"no experiment {experiment}; there are: {names}")
    return int(found["id"])


def _result_of(row: Any) -> TrialResult:
    values = {field.name: row[field.name] for field in fields(TrialResult)}
    for key in _JSON:
        values[key] = json.loads(values[key])
    values["is_best"] = bool(values["is_best"])
    return TrialResult(**values)


def results_frame(path: "str | os.PathLike[str] | None" = None,
                  experiment: Union[int, str, None] = None) -> Any:
    """Returns results() as a pandas.DataFrame, one row per trial. Needs pandas."""
    return results(path, experiment).frame()
