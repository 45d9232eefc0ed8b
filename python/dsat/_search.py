"""Searches from Python, such as a notebook, through the commands of dsat."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Union

from dsat._program import DsatError, program_path
from dsat._results import Results, TrialResult, database_path, results

Progress = Callable[[TrialResult], None]


class SearchResults(Results):
    """The trials of a search, and its answer."""

    def __init__(self, trials: Sequence[TrialResult], answer: Dict[str, Any]) -> None:
        super().__init__(trials)
        self.answer = answer  # The object that the command prints with --json.

    @property
    def best(self) -> Optional[TrialResult]:
        """The trial with the configuration of the answer; None if no trial has succeeded."""
        return next((trial for trial in self if trial.is_best), None)

    @property
    def ds_config(self) -> Any:
        """The configuration to train with. Raises FileNotFoundError if the search found none."""
        return json.loads(Path(self.answer["out_dir"], "ds_config.json").read_text("utf-8"))

    def _caption(self) -> str:
        factor = self.answer["factor_over_submitted"]
        text = f"experiment {self.answer['experiment']} ({self.answer['name']})"
        if factor is not None:
            text += f": {factor['value']:.2f} times as fast as submitted"
            if factor["low"] is not None:
                text += f" ({factor['low']:.2f} to {factor['high']:.2f})"
        return f"{text}; {self.answer['out_dir']}"


def auto(config: Union[str, "os.PathLike[str]", Sequence[str]], *, method: str = "auto",
         progress: Optional[Progress] = None, db: "str | os.PathLike[str] | None" = None,
         program: Optional[str] = None, **options: Any) -> SearchResults:
    """Searches the fastest configuration, as the command `dsat auto` does.

    Ctrl-C, or an exception of `progress`, ends the search cleanly and is raised again: results()
    has the measurements until then, and resume() continues.

    Args:
        config: the experiment file, or the words of a command: ["deepspeed", "train.py", ...].
        method: auto, asha, binary, random or grid.
        progress: is called with each trial once it has ended. Without it, the line that dsat prints
            for each trial is written to sys.stderr; its other lines are in both cases.
        db, program: as for Experiment.
        options: the command's options: max_trials=20 is --max-trials 20, a list gives an option
            several times, True is a flag, and None and False leave an option out.

    Raises DsatError with the message of dsat if it refuses the command or the search fails.
    """
    words = [os.fspath(config)] if isinstance(config, (str, os.PathLike)) else ["--", *config]
    return _search(method, words, progress, db, program, options)


def resume(experiment: Union[int, str], *, progress: Optional[Progress] = None,
           db: "str | os.PathLike[str] | None" = None, program: Optional[str] = None,
           **options: Any) -> SearchResults:
    """Continues an experiment, given by its number or name, as the command `dsat resume` does.

    The rest is as for auto(). `progress` is first called with the trials that have ended before.
    """
    return _search("resume", [str(experiment)], progress, db, program, options)


def _arguments(options: Mapping[str, Any]) -> List[str]:
    """The options of a command."""
    arguments = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is True:
                arguments.append(option)
            elif each is not None and each is not False:
                arguments.append(f"{option}={each}")
    return arguments


class _Shown(threading.Thread):
    """Shows what dsat says on standard error."""

    def __init__(self, stream: IO[str], shows_trials: bool) -> None:
        super().__init__(daemon=True)
        self.experiment: Optional[int] = None  # Known once the search begins.
        self.last = ""
        self._stream = stream
        self._shows_trials = shows_trials

    def run(self) -> None:
        for self.last in self._stream:
            heading = re.match(r"experiment (\d+) \(", self.last)
            if heading and self.experiment is None:
                self.experiment = int(heading[1])
            if self._shows_trials or not self.last.startswith("trial "):
                print(self.last, end="", file=sys.stderr, flush=True)


def _search(command: str, words: Sequence[str], progress: Optional[Progress],
            db: "str | os.PathLike[str] | None", program: Optional[str],
            options: Mapping[str, Any]) -> SearchResults:
    file = database_path(db)
    ended: Set[int] = set()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output, subprocess.Popen(
            [program_path(program), command, "--json", "--db", file, *_arguments(options), *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, encoding="utf-8",
            errors="replace") as child:
        assert child.stderr is not None
        shown = _Shown(child.stderr, shows_trials=progress is None)
        shown.start()
        try:
            while shown.is_alive():
                shown.join(0.5)  # Seconds.
                if progress is None or shown.experiment is None:
                    continue
                for trial in results(file, shown.experiment):
                    if trial.state != "running" and trial.trial not in ended:
                        ended.add(trial.trial)
                        progress(trial)
        except BaseException:
            child.send_signal(signal.SIGINT)
            shown.join()
            child.wait()
            raise
        if child.wait() != 0:
            raise DsatError(shown.last.strip() or f"dsat {command}: exit code {child.returncode}")
        output.seek(0)
        answer = json.load(output)
    return SearchResults(results(file, answer["experiment"]), answer)
