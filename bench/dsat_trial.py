"""Runs dsat-trial and the ranks of its peers for the training benchmarks, without a runner."""
import json
import os
import pathlib
import subprocess
import tempfile
import threading

OUT_OF_MEMORY = 3  # dsat-trial's exit code if memory runs out.


class RanksFailed(Exception):
    """At least one rank failed; `exit_code` is the first one that is not 0."""

    def __init__(self, command, exit_code, log):
        super().__init__(f"{' '.join(map(str, command))} ended with {exit_code}:\n{log[-4000:]}")
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
    with open(log_path, "w+") if log_path else tempfile.TemporaryFile("w+") as log:
        processes = [
            subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank),
                                           **of_rank(rank)},
                             stdout=subprocess.PIPE, stderr=log, text=True, pass_fds=pass_fds)
            for rank in range(ranks)
        ]
        timer = threading.Timer(limit_s or 0, lambda: [process.kill() for process in processes])
        if limit_s:
            timer.start()
        outputs = [process.communicate()[0] for process in processes]
        timer.cancel()
        exit_codes = [process.returncode for process in processes if process.returncode != 0]
        if exit_codes:
            log.seek(0)
            raise RanksFailed(command, exit_codes[0], log.read())
    lines = outputs[0].splitlines()
    return json.loads(lines[-1]) if lines else None


def run_task(build, task_path, ranks, threads, environment=None, **options):
    """Runs dsat-trial with the options of run_ranks. Returns rank 0's last line as JSON."""
    group = os.memfd_create("dsat-group")
    command = [pathlib.Path(build).resolve() / "dsat-trial", task_path]
    try:
        return run_ranks(command, ranks, threads,
                         {**(environment or {}), "DSAT_GROUP_FD": str(group)}, (group,), **options)
    finally:
        os.close(group)


def run_dsat(build, task_path, ranks, threads, limit_s=None):
    """Returns the metrics of a task (proto/trial.h) by name."""
    metrics = run_task(build, task_path, ranks, threads, limit_s=limit_s)["measurement"]
    return {name: metric["value"] for name, metric in metrics.items()}
