"""Writes the trials of an experiment to a tracker of experiments, for `dsat export --to`."""
from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict, fields
from typing import Any, Dict, List, Mapping, Tuple, Union

from dsat._client import run_command
from dsat._program import DsatError
from dsat._results import Results, TrialResult, database_path, results

# The name, the settings and the metrics of a run of a tracker.
_Run = Tuple[str, Dict[str, Any], Dict[str, float]]


def export(to: str, experiment: Union[int, str, None] = None,
           db: "str | os.PathLike[str] | None" = None) -> str:
    """Writes the trials of an experiment elsewhere, and returns a line that says where.

    Args:
        to: mlflow, which gets a run of the experiment with a nested run of each trial; wandb or
            trackio, which get these runs as a group of the project WANDB_PROJECT or
            TRACKIO_PROJECT of the environment, or "dsat"; or parquet, for a file in this folder.
        experiment: its number or name; by default the newest one.
        db: the database file; by default DSAT_DB of the environment, or `dsat.db`.

    Raises DsatError if there is no such experiment or this Python lacks the package.
    """
    write = {"mlflow": _write_mlflow, "wandb": _write_group, "trackio": _write_group,
             "parquet": _write_parquet}.get(to)
    if write is None:
        raise DsatError(f"dsat: export to {to}: expected mlflow, wandb, trackio or parquet")
    package = "pandas" if to == "parquet" else to
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise DsatError(f"dsat: export to {to}: this Python has no {error.name}; install it by "
                        f"{sys.executable} -m pip install {package}") from error
    which = [] if experiment is None else [str(experiment)]
    shown = run_command(None, ["show", *which, "--db", database_path(db)])
    trials = results(db, shown["experiment"])
    name = f"{shown['name']} {shown['experiment']}"
    search = (name,
              {key: shown[key] for key in ("experiment", "method", "metric", "state", "reason")},
              _numbers(shown["factor_over_submitted"] or {}))
    where = write(module, [search, *(_run_of(name, trial) for trial in trials)], trials)
    return f"{to}: {len(trials)} trials of experiment {shown['experiment']} in {where}"


def _numbers(values: Mapping[str, Any]) -> Dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, (int, float))}


def _run_of(search: str, trial: TrialResult) -> _Run:
    settings = asdict(trial)
    metrics = _numbers({field.name: settings.pop(field.name) for field in fields(TrialResult)
                        if field.type == "Optional[float]"})
    del settings["ds_config"]
    settings.update((key[1:], value) for key, value in settings.pop("assignment").items())
    return f"{search} trial {trial.trial}", settings, metrics


def _write_mlflow(mlflow: Any, runs: List[_Run], _: Results) -> str:
    def start(run: _Run) -> Any:
        started = mlflow.start_run(run_name=run[0], nested=True)
        mlflow.log_params(run[1])
        mlflow.log_metrics(run[2])
        return started

    with start(runs[0]):
        for run in runs[1:]:
            with start(run):
                pass
    return f"run {runs[0][0]} at {mlflow.get_tracking_uri()}"


def _write_group(tracker: Any, runs: List[_Run], _: Results) -> str:
    project = os.environ.get(f"{tracker.__name__.upper()}_PROJECT") or "dsat"
    for name, settings, metrics in runs:
        tracker.init(project=project, group=runs[0][0], name=name, config=settings)
        tracker.log(metrics)
        tracker.finish()
    return f"group {runs[0][0]} of project {project}"


def _write_parquet(_: Any, runs: List[_Run], trials: Results) -> str:
    frame = trials.frame()
    for column in ("assignment", "ds_config"):  # Objects with other keys in each row.
        frame[column] = frame[column].map(json.dumps)
    path = f"dsat-trials-{runs[0][1]['experiment']}.parquet"
    frame.to_parquet(path)
    return path


def main() -> None:
    """The arguments are `to`, the database and maybe the experiment."""
    to, db, *experiment = sys.argv[1:]
    try:
        print(export(to, experiment[0] if experiment else None, db))
    except (DsatError, ImportError) as error:
        sys.exit(str(error))
