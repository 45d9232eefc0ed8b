"""deepspeed.initialize() gets the config of the trial, and its engine is watched."""
from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
from types import ModuleType
from typing import Any, Dict, Iterator, List, Optional

from dsat._config import RECIPE_KEYS, config_of_trial, micro_batch_of
from dsat._hook import arguments, leave_out, wrap
from dsat._hook.batches import (WAY_OUT, BatchCounter, UnreachableError, check_accumulation,
                                rebatch_loaders_of)
from dsat._meter import (Meter, Passes, count_parameters, finish_profile, memory_in_use, number_of,
                         uses_gpu)
from dsat._trial import Config, Trial, check_rank, rank_file, read_json, trial

# True once a trainer has taken the trial's config, and once its data loaders follow it, too.
trainer_has_config = False
trainer_knows_batch = False
# True if the trainer divides losses by the accumulation steps before backward().
trainer_divides_loss = False
# True once the script has an engine that trains. A trial measures the first one.
_has_engine = False


def _given_config(kwargs: Config) -> Config:
    """The script's config, wherever it passed it; {} if it passed none that can be read."""
    source: Any = kwargs.get("config") or kwargs.get("config_params")
    source = source or getattr(kwargs.get("args"), "deepspeed_config", None)
    if isinstance(source, dict):
        return source
    try:
        return read_json(source)
    except (OSError, TypeError, ValueError):
        return {}


def _trains(kwargs: Config, given: Config) -> bool:
    """False for an engine that only computes, such as that of a reference model."""
    has_parameters = kwargs.get("optimizer") is not None or "model_parameters" in kwargs
    return has_parameters or not given or "optimizer" in given


def _check_local_rank(args: Any) -> None:
    """DeepSpeed's launcher passes --local_rank to each rank; a script may depend on it."""
    given, rank = getattr(args, "local_rank", None), os.environ.get("LOCAL_RANK")
    if isinstance(given, int) and given >= 0 and rank is not None and given != int(rank):
        raise UnreachableError(
            f"dsat: the script's local_rank is {given} in the process of local rank {rank}: start "
            "it by `deepspeed` in place of `python`, which passes --local_rank, or let the default "
            "of this argument be int(os.environ[\"LOCAL_RANK\"])")


def _check_batches(given: Config, config: Config, training_data: Any) -> Optional[int]:
    """Makes the script's loaders follow the trial. Returns the micro-batch size that they had."""
    world = int(os.environ.get("WORLD_SIZE") or 1)
    was, now = micro_batch_of(given, world), micro_batch_of(config, world)
    if trainer_knows_batch or was is None or now is None or was == now:
        return None
    if training_data is None:
        rebatch_loaders_of(was, now)
    return was


class PassTimers:
    """Times the passes of a step with DeepSpeed's own timers, which do not wait for the device."""

    def __init__(self) -> None:
        from deepspeed.utils.timer import SynchronizedWallClockTimer
        self._timers: Any = SynchronizedWallClockTimer()

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        timer = self._timers(name)
        is_inner = timer.started_
        if not is_inner:
            timer.start()
        try:
            yield
        finally:
            if not is_inner:
                timer.stop()

    def take(self, name: str) -> float:
        """Seconds since the last call, of which the device has finished the work."""
        return float(self._timers(name).elapsed(reset=True)) / 1e3


class EngineWatch:
    """Watches the passes and steps of one engine, and measures them."""

    def __init__(self, of: Trial, micro_batch: int, script_micro_batch: Optional[int]) -> None:
        self._trial = of
        self._script_micro_batch = script_micro_batch
        self._losses: List[Any] = []
        self._sum_losses = False
        self._counter = BatchCounter(micro_batch, script_micro_batch)
        self._meter = Meter(of, self._counter)
        self.timers = PassTimers()
        self._idle_since: Optional[float] = None
        self._wait_s = 0.0

    def forward(self, original: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        """Runs a forward pass of the training. In the profiling trial, the process ends then."""
        if self._idle_since is not None:
            self._wait_s += time.perf_counter() - self._idle_since
            self._idle_since = None
        if not self._counter.note(args, kwargs, self._meter.num_steps):
            raise UnreachableError(
                f"dsat: the trial has micro-batches of {self._counter.micro_batch} samples, but "
                f"the script feeds batches of {self._script_micro_batch}: {WAY_OUT}")
        before = memory_in_use() if self._trial.is_profile else 0
        with self.timers.timed("forward"):
            output = original(engine, *args, **kwargs)
        if self._trial.is_profile:
            rank_file(self._trial).keep(self._counter.report())
            counts = [engine.mp_world_size * count
                      for count in count_parameters(engine.module.parameters())]
            activations = memory_in_use() - before
            del output
            finish_profile(self._trial, *counts, activations, {"trainer": arguments.submitted})
        return output

    def before_backward(self, loss: Any, kwargs: Dict[str, Any]) -> None:
        self._sum_losses = trainer_divides_loss or kwargs.get("scale_wrt_gas") is False
        if hasattr(loss, "detach"):
            self._losses.append(loss.detach())

    def end_step(self, engine: Any) -> None:
        """Ends an optimizer step, and the process once enough steps are measured."""
        losses = [number for number in map(number_of, self._losses) if number is not None]
        loss = sum(losses) / (1 if self._sum_losses else len(losses)) if losses else None
        passes = Passes(*(self.timers.take(name) for name in ("forward", "backward", "update")))
        self._meter.end_step(loss, passes, self._wait_s, settings_of(engine)["train_batch_size"])
        self._losses.clear()
        self._wait_s = 0.0
        self.note_idle()

    def note_idle(self) -> None:
        """The device has nothing to do from now on until the next forward pass."""
        self._idle_since = time.perf_counter()


def settings_of(engine: Any) -> Dict[str, Any]:
    """The settings that an engine runs with."""
    micro, steps = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    # DeepSpeed's own number of replicas counts ranks that share tensors.
    shares_tensors = getattr(engine, "autotp_size", int)() > 1
    replicas = (engine.dp_world_size if shares_tensors
                else int(engine.train_batch_size()) // (micro * steps))
    return {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps,
            "train_batch_size": micro * steps * replicas, "data_parallel_size": replicas,
            "zero_stage": int(engine.zero_optimization_stage()),
            "reduce_bucket_size": engine.zero_reduce_bucket_size(),
            "allgather_bucket_size": engine.zero_allgather_bucket_size()}


def _check_replicas(ran: Dict[str, Any], running: Trial) -> None:
    """Raises ValueError if ranks share samples and the trial's config does not show it."""
    batch = running.config.get("train_batch_size")
    if running.measures and isinstance(batch, int) and running.accumulation_steps is not None and (
            ran["train_batch_size"] != batch):
        raise ValueError(
            f"the trial has train_batch_size {batch}, but the script trains on "
            f"{ran['train_batch_size']} samples a step, because ranks share them (replicas of the "
            f"model: {ran['data_parallel_size']}): write \"pipeline\": {{\"stages\": N}} into the "
            "ds_config, or use --train-batch-size any")


def change(deepspeed: ModuleType) -> None:
    """Wraps deepspeed.initialize and the methods of the engines."""
    from dsat._hook import compiler, pipeline

    @wrap(deepspeed, "initialize")
    def _initialize(original: Any, *values: Any, **kwargs: Any) -> Any:
        global _has_engine
        running = trial()
        if running is None:
            return original(*values, **kwargs)
        kwargs = dict(inspect.signature(original).bind(*values, **kwargs).arguments)
        given = _given_config(kwargs)
        if not _trains(kwargs, given):
            return original(**kwargs)
        is_measured = running.measures and not _has_engine
        _has_engine = True
        if not trainer_has_config:
            check_accumulation(given.get("gradient_accumulation_steps"), running)
        config = config_of_trial(given, running.config, by_trainer=trainer_has_config)
        for key in RECIPE_KEYS:
            if key in given and given[key] != config[key]:
                print(f"dsat: {key} of the script, {given[key]}, is replaced by that of the trial's "
                      f"config, {config[key]}", file=sys.stderr)
        if running.micro_batch_size is not None and running.accumulation_steps is not None:
            config.pop("train_batch_size", None)  # DeepSpeed knows the number of replicas.
        has_pipeline = isinstance(kwargs.get("model"), deepspeed.PipelineModule)
        if running.measures:
            config.pop("autotuning", None)  # DeepSpeed's own tuner would end the script.
        kwargs.pop("config_params", None)
        kwargs["config"] = config
        args: Any = kwargs.get("args")
        _check_local_rank(args)
        check_rank()  # Before the engine takes memory.
        in_args = getattr(args, "deepspeed_config", None)
        if in_args is not None:
            args.deepspeed_config = None  # DeepSpeed refuses two sources.
        was = _check_batches(given, config, kwargs.get("training_data"))
        if not has_pipeline and kwargs.get("model") is not None:
            arguments.change_model(kwargs["model"])
            arguments.prepare_experts(kwargs["model"], config.get("expert_parallel") or {}, running)
        result = original(**kwargs)
        if in_args is not None:  # A dry run of a command alone has no config of its own.
            args.deepspeed_config = str(running.config_path) if running.config else in_args
        engine = result[0]
        if not is_measured and running.measures:
            return result
        ran = settings_of(engine)
        _check_replicas(ran, running)
        rank_file(running).begin({"engine": type(engine).__name__, "on_cpu": not uses_gpu(),
                                  "ran": ran})
        micro_batch = engine.train_micro_batch_size_per_gpu()
        if is_measured and has_pipeline:
            engine.dsat_pipeline_watch = pipeline.PipelineWatch(running, micro_batch)
        elif is_measured:
            engine.dsat_watch = EngineWatch(running, micro_batch, was)
        return result

    @wrap(deepspeed.zero.Init, "__init__")
    def _zero_init(original: Any, *values: Any, **kwargs: Any) -> None:
        running = trial()
        section = running.config.get("zero_optimization") if running is not None else None
        stage = section.get("stage") if isinstance(section, dict) else None
        bound = inspect.signature(original).bind(*values, **kwargs)
        if isinstance(stage, int) and stage != 3:
            bound.arguments["enabled"] = False  # Only stage 3 can train partitioned parameters.
        original(*bound.args, **bound.kwargs)

    _wrap_engine(deepspeed.DeepSpeedEngine)
    change_in_dry_run(deepspeed)
    pipeline.change(deepspeed)
    compiler.change(deepspeed)


def change_in_dry_run(module: ModuleType) -> None:
    """Lets a dry run of this process change a module that was imported."""
    fake = sys.modules.get("dsat._fake")
    if fake is not None and fake.current is not None:
        fake.current.change(module.__name__)


def _wrap_engine(engine_class: Any) -> None:
    engine_class.dsat_watch = None

    @wrap(engine_class, "forward")
    def _forward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = self.dsat_watch
        if watch is None or not self.module.training:  # engine.eval() changes only the module.
            return original(self, *args, **kwargs)
        return watch.forward(original, self, args, kwargs)

    @wrap(engine_class, "backward")
    def _backward(original: Any, self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        watch = self.dsat_watch
        if watch is None:
            return original(self, loss, *args, **kwargs)
        watch.before_backward(loss, kwargs)
        with watch.timers.timed("backward"):
            return original(self, loss, *args, **kwargs)

    @wrap(engine_class, "step")
    def _step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = self.dsat_watch
        if watch is None:
            return original(self, *args, **kwargs)
        before = self.global_steps
        with watch.timers.timed("update"):
            result = original(self, *args, **kwargs)
        if self.global_steps > before:
            watch.end_step(self)
        elif not uses_gpu():
            watch.note_idle()  # A GPU is still busy with the micro-batch.
        return result

    leave_out(engine_class, "save_checkpoint", True)  # The user's checkpoints stay as they are.
