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


def run_ranks(command, ranks, threads, environment, pass_fds=(), limit_s=None):
    """Runs one process per rank, for at most `limit_s` seconds. Returns the last output line of
    rank 0, parsed as JSON."""
    common = {
        **os.environ,
        **environment,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": str(threads),
        "DSAT_NUM_THREADS": str(threads),
    }
    with tempfile.TemporaryFile("w+") as log:
        processes = [
            subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
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
    return json.loads(outputs[0].strip().splitlines()[-1])


def run_dsat(build, task_path, ranks, threads, limit_s=None):
    """Returns the metrics of a task (proto/trial.h) by name."""
    group = os.memfd_create("dsat-group")
    environment = {"DSAT_GROUP_FD": str(group)}
    command = [pathlib.Path(build).resolve() / "dsat-trial", task_path]
    try:
        metrics = run_ranks(command, ranks, threads, environment, (group,), limit_s)["measurement"]
    finally:
        os.close(group)
    return {name: metric["value"] for name, metric in metrics.items()}
