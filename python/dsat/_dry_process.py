"""Runs a script on fake tensors, in processes that are forked for each config of a dry run."""
from __future__ import annotations

import ast
import contextlib
import ctypes
import gc
import json
import math
import multiprocessing.connection
import os
import pathlib
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, Dict, List, NamedTuple

from dsat._meter import count_parameters
from dsat._trial import Config, write_json

# Packages that take long to import; processes for several configs share it.
_PACKAGES = {"torch", "deepspeed", "transformers", "accelerate", "trl", "peft", "datasets",
             "lightning", "pytorch_lightning", "torchvision", "bitsandbytes"}
MICRO_BATCH = "train_micro_batch_size_per_gpu"
# How long the script may take to its second step.
_LIMIT_S = 300
_MOST_PROCESSES = 8
_LONGEST = 400  # Characters of an error's message.
_LONGEST_FOLDER = 70  # A socket's path has at most 107 characters, of which workers add 32.


def preload(script: str) -> None:
    """Imports what the script will import, as far as it takes long."""
    try:
        tree = ast.parse(pathlib.Path(script).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # A module; or the script fails as it would without dsat.
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [""]
        if all(name.partition(".")[0] in _PACKAGES for name in names):
            with contextlib.suppress(Exception):
                exec(compile(ast.Module([node], []), script, "exec"), {})


class Job(NamedTuple):
    """A config to run; `is_last`: as the last rank, and else as the first."""

    ranks: int
    config: Config
    is_last: bool = False
    trainer: Config = {}  # Its arguments (_hook/arguments.py).


class Run(NamedTuple):
    """What a run has shown."""

    facts: Dict[str, Any]  # As _facts() collects them, or `error`.
    curve: Any = None  # An array of the bytes of each kind after each operator.
    phases: Any = None  # The phase of each operator.


class Runner:
    """Runs the script with configs, in processes of their own."""

    def __init__(self, request: Dict[str, Any], scratch: pathlib.Path) -> None:
        self._request, self._scratch = request, scratch
        self._ends = time.monotonic() + request.get("limit_s", math.inf)

    def run_all(self, jobs: List[Job], own_batch: int = 0) -> List[Run]:
        """Runs them in parallel, as many as there is time for, the first ones first.

        `own_batch` is the size of loaders that get the config's micro-batch size; 0: none do.
        """
        waiting, running, runs = list(enumerate(jobs)), {}, {}
        context = multiprocessing.get_context("fork")
        gc.freeze()  # A collection in a run is slow with what was imported.
        while (waiting or running) and time.monotonic() < self._ends:
            while waiting and len(running) < min(len(os.sched_getaffinity(0)), _MOST_PROCESSES):
                at, job = waiting.pop(0)
                folder = pathlib.Path(tempfile.mkdtemp(dir=self._scratch))
                receiver, sender = context.Pipe(duplex=False)
                context.Process(target=_become, args=(
                    job, folder, self._request, own_batch, sender)).start()
                sender.close()
                running[receiver] = at
            left = self._ends - time.monotonic()
            for receiver in multiprocessing.connection.wait(list(running), min(left, _LIMIT_S)):
                try:
                    run = Run(*receiver.recv())
                except EOFError:
                    run = Run({"error": f"{self._request['script']}: it was killed, or took more "
                                        f"than {_LIMIT_S} s to its second step"})
                runs[running.pop(receiver)] = run
        late = Run({"error": f"{self._request['script']}: two steps on fake tensors take longer "
                             f"than {self._request.get('limit_s')} s"})
        return [runs.get(at, late) for at in range(len(jobs))]


def _become(job: Job, folder: pathlib.Path, request: Dict[str, Any], own_batch: int,
            sender: Any) -> None:
    """Runs the script as one of the ranks, sends what it shows, and ends this process."""
    script = request["script"]
    signal.alarm(_LIMIT_S)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # It ends with its parent.
    write_json(folder / "ds_config.json", job.config)
    if len(str(folder)) < _LONGEST_FOLDER:
        # The process ends without removing its temporary files, as those of a loader's workers.
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    config = str(folder / "ds_config.json")
    # One rank without a launcher starts as by hand.
    is_alone = job.ranks == 1 and not request.get("is_launched")
    os.environ.update({"DSAT_RANK": "0", "DSAT_MASTER_PORT": "29500"} if is_alone else {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(job.ranks), "LOCAL_SIZE": str(job.ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    os.environ.update({
        **{name: value.replace("{ds_config}", config)
           for name, value in request["environment"].items()},
        "DSAT_DS_CONFIG": config,
        "DSAT_TRIAL_DIR": str(folder), "DSAT_MEASURE": "memory",
        "DSAT_TRAINER": json.dumps(job.trainer)})
    sys.argv = [script, *(word.replace("{ds_config}", config) for word in request["arguments"])]
    training: Any = None

    def finish(ended: str = "") -> None:
        import numpy
        from dsat._memory import KINDS
        curve = numpy.array(training.curve).reshape(-1, len(KINDS))
        if "stages" in request and not request["on_gpu"]:
            curve[:, -2] += curve[:, -1]  # The host's memory is the device's.
        sender.send(({**_facts(training, request["speeds"]), "ended": ended}, curve,
                     numpy.frombuffer(training.phases, numpy.uint8)))
        os._exit(0)
    ended, recurs = "", False
    try:
        from dsat import _fake
        training = _fake.FakeTraining(job.is_last)
        training.install(job.ranks, request["on_gpu"])
        training.watch(finish)
        training.other_sizes = {own_batch: job.config[MICRO_BATCH]} if own_batch else {}
        with _fake.OnCpu(request["on_gpu"]), training:
            if request["is_module"]:
                sys.path[0] = os.getcwd()
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = str(pathlib.Path(script).resolve().parent)
                runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        is_exit = isinstance(error, SystemExit)
        if not is_exit:
            traceback.print_exc()
        ended = f" with exit code {error.code or 0}" if is_exit else f": {_why(error)}"
    if training is not None and training.num_steps > 0:
        finish(ended)
    if training is not None and training.trained:
        ended += ("; it has computed gradients, but no optimizer of PyTorch has made a step, which "
                  "a dry run waits for")
    if not ended.startswith(":"):
        sys.stdout.flush()
        said = (folder / "log").read_text(errors="replace").strip().split("\n")[-1]
        recurs = ended == " with exit code 2" and ": error: " in said  # It is argparse's.
        ended = f": it ended{ended}; its last line is: {said[:_LONGEST]}"
    sender.send(({"error": f"{script}{ended}", "recurs": recurs},))
    os._exit(1)


def _why(error: BaseException) -> str:
    """The line of the script that raised an error, and the error."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__)
             if "site-packages" not in frame.filename and "/lib/python" not in frame.filename
             and not frame.filename.startswith(str(pathlib.Path(__file__).parent))
             and not frame.filename.startswith("<")]
    where = f"line {lines[-1].lineno} ({lines[-1].line}): " if lines else ""
    if lines and lines[-1].filename != sys.argv[0]:
        where = f"{lines[-1].filename}, {where}"
    if type(error).__name__ in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return (f"{where}the result of {error} depends on values, which fake tensors do not have; "
                "a search (dsat auto) measures such a script by launches")
    return where + " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]


def _times(training: Any, facts: Dict[str, Any], speeds: List[float]) -> Dict[str, Any]:
    """The ms of the passes of a micro-batch and of an update; and the collectives of both.

    From stage 2 on each micro-batch has collectives in its passes, and else each step.
    """
    import numpy
    from dsat._memory import PHASES
    work = numpy.array(training.work).reshape(-1, 2)
    seconds = speeds[2] + numpy.maximum(work[:, 0] / speeds[0], work[:, 1] / speeds[1])
    of_phases = dict(zip(PHASES, 1e3 * numpy.bincount(
        numpy.frombuffer(training.phases, numpy.uint8), seconds, len(PHASES))))
    steps = max(1, training.num_steps)
    passes = steps * facts["accumulation_steps"]
    sent = numpy.add(training.sent["forward"], training.sent["backward"])
    return {"passes_ms": (of_phases["forward"] + of_phases["backward"]) / passes,
            "passes_sent": list(sent / (passes if facts["stage"] in (2, 3) else steps)),
            "update_ms": of_phases["update"] / steps,
            "update_sent": [number / steps for number in training.sent["update"]]}


def _facts(training: Any, speeds: List[float]) -> Dict[str, Any]:
    from dsat._hook import arguments
    engine, parameters = training.engine, training.parameters
    num_params, trainable_num_params = count_parameters(
        parameters.values() if engine is None else engine.module.parameters())
    if engine is None:  # A reference model may be left trainable.
        trainable_num_params, _ = count_parameters(map(parameters.get, training.trained))
    facts = {"num_params": num_params, "trainable_num_params": trainable_num_params,
             "num_steps": training.num_steps, "flops": training.flops,
             "micro_batch_size": training.batch_size, "stage": None,
             "trainer": arguments.submitted,
             "process_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
             "accumulation_steps": max(1, training.num_batches // max(1, training.num_steps))}
    if engine is not None:
        from dsat._hook.engine import settings_of
        section = dict(engine.config.get("zero_optimization") or {})
        facts.update(micro_batch_size=engine.train_micro_batch_size_per_gpu(),
                     accumulation_steps=engine.gradient_accumulation_steps(),
                     stage=int(engine.zero_optimization_stage()), section=section,
                     ran=settings_of(engine))
    return {**facts, **_times(training, facts, speeds)}
