"""Runs dsat-trial and the ranks of its peers for the training benchmarks, without a runner.

Besides, it has the types of options that the benchmarks share: each refuses a value in one line
before anything runs.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading

OUT_OF_MEMORY = 3  # dsat-trial's exit code if memory runs out.
ROOT = pathlib.Path(__file__).resolve().parent.parent
# The programs are in an archive of scripts/bundle, or in the build folder of a checkout.
BUILD = str(ROOT if (ROOT / "dsat-trial").exists() else ROOT / "build")


def build_folder(text):
    folder = pathlib.Path(text).resolve()
    for program in ("dsat", "dsat-trial"):
        if not (folder / program).is_file():
            raise argparse.ArgumentTypeError(
                f"{text} has no program {program}; expected a finished build's folder")
    return folder


def python(text):
    program = shutil.which(text)
    if program is None:
        raise argparse.ArgumentTypeError(f"{text} is no program; expected a Python")
    return os.path.abspath(program)  # A link of a virtual environment stays one.


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is none; expected a whole number above 0")
    return int(text)


def list_of(names):
    """The type of a list with commas, each of these names."""
    def parse(text):
        unknown = [name for name in text.split(",") if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]}; expected of {', '.join(names)}")
        return text.split(",")
    return parse


def interrupt_on_sigterm():
    """Lets a script that is told to end do so as it does at Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class RanksFailed(Exception):
    """At least one rank failed; `exit_code` is the first one that is not 0."""

    def __init__(self, command, exit_code, log, limit_s=None):
        limit = f", after the limit of {limit_s:g} s" if limit_s else ""
        super().__init__(
            f"{' '.join(map(str, command))} ended with {exit_code}{limit}:\n{log[-4000:]}")
        self.exit_code = exit_code


def run_ranks(command, ranks, threads, environment, pass_fds=(), limit_s=None,
              of_rank=lambda rank: {}, log_path=None):
    """Runs one process per rank, for at most `limit_s` seconds, whose environment has `of_rank` of
    it, too. Returns the last output line of rank 0, parsed as JSON. The error output of all is in
    a file `log_path`."""
    common = {
        **os.environ,
        **environment,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": str(threads),
        "DSAT_NUM_THREADS": str(threads),
    }
    late = threading.Event()
    with open(log_path, "w+") if log_path else tempfile.TemporaryFile("w+") as log:
        processes = []

        def end():
            for process in processes:
                process.kill()

        timer = threading.Timer(limit_s or 0, lambda: (late.set(), end()))
        try:
            for rank in range(ranks):
                processes.append(subprocess.Popen(
                    command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank),
                                  **of_rank(rank)},
                    stdout=subprocess.PIPE, stderr=log, text=True, pass_fds=pass_fds))
            if limit_s:
                timer.start()
            outputs = [process.communicate()[0] for process in processes]
        finally:
            timer.cancel()
            end()
        exit_codes = [process.returncode for process in processes if process.returncode != 0]
        if exit_codes:
            log.seek(0)
            raise RanksFailed(command, exit_codes[0], log.read(), limit_s if late.is_set() else None)
    lines = outputs[0].splitlines()
    return json.loads(lines[-1]) if lines else None


def run_task(build, task_path, ranks, threads, **options):
    """Runs dsat-trial with the options of run_ranks. Returns rank 0's last line as JSON."""
    group = os.memfd_create("dsat-group")
    command = [pathlib.Path(build).resolve() / "dsat-trial", task_path]
    try:
        return run_ranks(command, ranks, threads, {"DSAT_GROUP_FD": str(group)}, (group,),
                         **options)
    finally:
        os.close(group)


def run_dsat(build, task_path, ranks, threads, limit_s=None):
    """Returns the metrics of a task (proto/trial.h) by name."""
    metrics = run_task(build, task_path, ranks, threads, limit_s=limit_s)["measurement"]
    return {name: metric["value"] for name, metric in metrics.items()}
