"""Runs the trials of an experiment in a Python program, through `dsat create`, `ask` and `tell`."""
from __future__ import annotations

import json
import math
import os
import subprocess
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from dsat._program import DsatError, program_path
from dsat._results import database_path


_MOST_REASON_BYTES = 4096


@dataclass(frozen=True)
class PendingTrial:
    """A trial that was asked for, and whose result dsat waits for."""

    id: int
    kind: str  # profile, submitted, search, confirm, reference, soak or larger.
    ds_config: Dict[str, Any]  # The whole config to run.
    assignment: Dict[str, Any]  # JSON pointers of the keys that it sets over the base config.

    @property
    def is_profile(self) -> bool:
        """True if the model's profile is wanted, not metrics."""
        return self.kind == "profile"


def run_command(program: Optional[str], arguments: Sequence[str],
                text: Optional[str] = None) -> Dict[str, Any]:
    """Runs a command, whose standard input is `text`, and returns its answer."""
    path = program_path(program)
    done = subprocess.run([path, *arguments, "--json"], input=text or "", capture_output=True,
                          encoding="utf-8", errors="replace", check=False)
    if done.returncode != 0:
        raise DsatError(done.stderr.strip() or f"{path} {' '.join(arguments)}: exit code "
                                               f"{done.returncode}")
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def _numbers(what: str, values: Mapping[str, float]) -> str:
    """The JSON of a mapping to numbers, also to those of numpy. Raises ValueError by name."""
    numbers = {}
    for name, value in values.items():
        number = value if isinstance(value, int) else float(value)
        if not math.isfinite(number):
            raise ValueError(f"{what}: {name} is {value}; expected a finite number")
        numbers[name] = number
    return json.dumps(numbers)


def _reason(text: str) -> str:
    """The part of a reason that dsat keeps, such as that of a long message of an exception."""
    line = text.replace("\0", " ").encode("utf-8", "replace")[:_MOST_REASON_BYTES]
    return line.decode("utf-8", "ignore")


class Experiment:
    """An experiment whose trials this program runs.

    Every call is one command of dsat and committed to the database when it returns. Several
    programs may drive one experiment; each gets other trials.

    Example:
        experiment = dsat.Experiment.create("asha", "deepspeed.yaml", profile=profile)
        while not experiment.finished:
            trial = experiment.ask()
            if trial is None:  # The method waits for other running trials.
                time.sleep(1)
                continue
            experiment.tell(trial, metrics=train(trial.ds_config))
    """

    def __init__(self, experiment: Union[int, str], db: "str | os.PathLike[str] | None" = None,
                 program: Optional[str] = None) -> None:
        """Continues an experiment.

        Args:
            experiment: its number or name.
            db: the database file; by default DSAT_DB of the environment, or `dsat.db`.
            program: the path of dsat; by default DSAT_PROGRAM of the environment, or `dsat`.
        """
        self.experiment = experiment
        self.finished = False  # True once there will be no more trials.
        self._db = database_path(db)
        self._program = program

    @classmethod
    def create(cls, method: str, config: "str | os.PathLike[str]", *,
               profile: Optional[Mapping[str, float]] = None, options: Sequence[str] = (),
               db: "str | os.PathLike[str] | None" = None,
               program: Optional[str] = None) -> "Experiment":
        """Creates an experiment.

        Args:
            method: auto, asha, binary, random or grid.
            config: the experiment file.
            profile: num_params, trainable_num_params, activation_bytes_per_sample and
                device_memory_bytes of a rank. Without it, the first trial is the profiling trial.
            options: more arguments of `dsat create`, such as ["--max-trials", "30"].
            db: the database file, as in __init__(); it is created if there is none.
            program: as in __init__().
        """
        arguments = ["create", method, os.fspath(config), "--db", database_path(db), *options]
        text = None
        if profile is not None:
            arguments += ["--profile", "-"]
            text = _numbers("profile", profile)
        return cls(int(run_command(program, arguments, text)["experiment"]), db, program)

    def ask(self) -> Optional[PendingTrial]:
        """Returns the next trial; None if there is none now or `finished` is True.

        Raises DsatError with the reason if the experiment has failed.
        """
        answer = self._command("ask", [])
        trial = answer["trial"]
        if trial is None:
            return None
        return PendingTrial(trial["id"], trial["kind"], trial["ds_config"], trial["assignment"])

    def tell(self, trial: Union[PendingTrial, int], *,
             metrics: Optional[Mapping[str, float]] = None, infeasible: Optional[str] = None,
             failed: Optional[str] = None, profile: Optional[Mapping[str, float]] = None) -> None:
        """Records how a trial ended; give one of the four.

        Args:
            trial: the trial or its number.
            metrics: names and values, among them the metric of the search: `throughput` in
                samples/s, `FLOPS_per_gpu` in FLOP/s, `latency` in ms, `peak_bytes` in bytes.
            infeasible: why this configuration cannot run here, which is evidence for the search.
            failed: why it failed otherwise, which is no evidence about memory. Of both reasons the
                first 4096 bytes count.
            profile: of the profiling trial, with the keys of create().
        """
        given = [value for value in (metrics, infeasible, failed, profile) if value is not None]
        if len(given) != 1:
            raise ValueError("tell(): give one of metrics, infeasible, failed and profile")
        number = trial.id if isinstance(trial, PendingTrial) else trial
        arguments: List[str] = ["--trial", str(number)]
        text = None
        for name, value in (("metrics", metrics), ("profile", profile)):
            if value is not None:
                arguments += [f"--{name}", "-"]
                text = _numbers(name, value)
        for name, reason in (("infeasible", infeasible), ("failed", failed)):
            if reason is not None:
                arguments += [f"--{name}", _reason(reason)]
        self._command("tell", arguments, text)

    def best(self) -> Dict[str, Any]:
        """Returns the best trial so far as `dsat best --json` prints it: id, ds_config, metrics.

        Raises DsatError as long as no trial has succeeded.
        """
        return run_command(self._program, ["best", str(self.experiment), "--db", self._db])

    def _command(self, name: str, arguments: Sequence[str],
                 text: Optional[str] = None) -> Dict[str, Any]:
        words = [name, str(self.experiment), "--db", self._db, *arguments]
        answer = run_command(self._program, words, text)
        self.finished = bool(answer["finished"])
        return answer
