"""Forks ranks from a process that has already imported PyTorch, which takes most of a rank's time.

Reads a line of JSON for each run, a list of ranks with `script`, `arguments`, `environment`,
`folder` and `log`, and answers with a line: the list of their exit codes. Nothing that dsat's hook
changes is imported before the fork.
"""
import atexit
import importlib
import json
import os
import pathlib
import runpy
import signal
import sys
import time
import traceback

PRELOADED = ["torch", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp",
             "torch.utils.cpp_extension"]
RUN_S = 240


def preload():
    for name in PRELOADED:
        importlib.import_module(name)
    changed = {"deepspeed", "accelerate", "transformers", "lightning", "pytorch_lightning"}
    assert not changed & sys.modules.keys(), changed & sys.modules.keys()
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"


def become(rank):
    """What Python does at its start, in the environment of the rank; then runs its script."""
    os.setsid()
    log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.stdout.reconfigure(line_buffering=True)
    os.chdir(rank["folder"])
    os.environ.clear()
    os.environ.update(rank["environment"])
    script = pathlib.Path(rank["script"])
    sys.path[:1] = [str(script.parent), *os.environ["PYTHONPATH"].split(os.pathsep)]
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401
    sys.argv = [str(script), *rank["arguments"]]
    code = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        traceback.print_exc()
        sys.last_type = type(error)
        code = 1
    leave(code)


def leave(code):
    """Ends as Python does, but does not free PyTorch's modules, which takes a second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_for(pids):
    """The exit codes of all; kills what has not ended in time."""
    deadline = time.monotonic() + RUN_S
    codes = {}
    while len(codes) < len(pids):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[pid] = os.waitstatus_to_exitcode(status)
            continue
        if time.monotonic() > deadline:
            for left in set(pids) - codes.keys():
                os.killpg(left, signal.SIGKILL)
        time.sleep(0.02)
    return [codes[pid] for pid in pids]


def main():
    preload()
    for line in sys.stdin:
        pids = []
        for rank in json.loads(line):
            pids.append(os.fork())
            if pids[-1] == 0:
                become(rank)
        print(json.dumps(wait_for(pids)), flush=True)
    leave(0)


if __name__ == "__main__":
    main()
