"""Measures DeepSpeed's PipelineEngine.

Its train_batch() runs a schedule of instructions. The times of the forward and backward ones are
taken with DeepSpeed's own timers, and the whole batch by the clock.
"""
from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from dsat._hook import wrap
from dsat._hook.batches import BatchCounter
from dsat._hook.engine import PassTimers
from dsat._meter import Meter, Passes, count_parameters, finish_profile, memory_in_use
from dsat._trial import Trial, rank_file


class PipelineWatch:
    """The measurements of one engine."""

    def __init__(self, of: Trial, micro_batch: int) -> None:
        self.trial = of
        self.counter = BatchCounter(micro_batch)
        self.meter = Meter(of, self.counter)
        self.timers = PassTimers()
        self.wait_s = 0.0
        self.activation_bytes = -1

    def begin_batch(self) -> None:
        """Forgets what an evaluation has left in the timers."""
        for name in ("forward", "backward"):
            self.timers.take(name)
        self.wait_s = 0.0

    def end_batch(self, engine: Any, loss: Any) -> None:
        if self.trial.is_profile:
            rank_file(self.trial).keep(self.counter.report())
            finish_profile(self.trial, *_count_of_stages(engine), self.activation_bytes)
        passes = Passes(self.timers.take("forward"), self.timers.take("backward"))
        self.meter.end_step(loss, passes, self.wait_s, engine.train_batch_size())


def _count_of_stages(engine: Any) -> "tuple[int, int]":
    """The parameters of all stages, and those that are trained."""
    import torch
    from deepspeed import comm
    counts = torch.tensor(count_parameters(engine.module.parameters()), device=engine.device)
    comm.all_reduce(counts, group=engine.grid.get_model_parallel_group())
    total, trained = counts.tolist()
    return int(total), int(trained)


def change(deepspeed: ModuleType) -> None:
    """Wraps the methods of PipelineEngine."""
    from deepspeed.runtime.pipe import schedule
    from deepspeed.runtime.pipe.engine import PipelineEngine

    PipelineEngine.dsat_pipeline_watch = None  # deepspeed.initialize() sets it (engine.py).

    @wrap(PipelineEngine, "train_batch")
    def _train_batch(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = self.dsat_pipeline_watch
        if watch is not None:
            watch.begin_batch()
        loss = original(self, *args, **kwargs)
        if watch is not None:
            watch.end_batch(self, loss)
        return loss

    @wrap(PipelineEngine, "_next_batch")
    def _next_batch(original: Any, self: Any) -> Any:
        begun = time.perf_counter()
        batch = original(self)
        watch = self.dsat_pipeline_watch
        if watch is not None:
            watch.wait_s += time.perf_counter() - begun
            if batch is not None and self.module.training:
                watch.counter.note(batch, {}, watch.meter.num_steps)
        return batch

    instructions = dict(PipelineEngine._INSTRUCTION_MAP)
    instructions[schedule.ForwardPass] = _timed(instructions[schedule.ForwardPass], "forward")
    instructions[schedule.BackwardPass] = _timed(instructions[schedule.BackwardPass], "backward")
    PipelineEngine._INSTRUCTION_MAP = instructions


def _timed(original: Any, name: str) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = self.dsat_pipeline_watch
        if watch is None:
            return original(self, *args, **kwargs)
        before = memory_in_use() if watch.activation_bytes < 0 else 0
        with watch.timers.timed(name):
            result = original(self, *args, **kwargs)
        if watch.activation_bytes < 0:
            watch.activation_bytes = max(0, memory_in_use() - before)
        return result
    return run
