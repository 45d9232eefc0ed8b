"""Trains a trial class: the loop around its train_batch() and evaluate_batch().

In a measured trial the import hook (dsat/_hook) measures the engine's steps and ends the process.
Otherwise it is a full run, with validations, checkpoints, and the end that the experiment file says.
"""
from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import random
import re
import socket
import sys
from typing import Any, Dict, List, Optional

import torch
from deepspeed.runtime.pipe.engine import PipelineEngine

from dsat._trial import measures

from . import core
from ._experiment import config, length_of, max_length, section, seed
from ._loaders import DataLoader, forever
from ._loaders import length_of as batches_in
from ._reducers import Metrics, mean, scalars
from .pytorch.deepspeed import DeepSpeedTrial, DeepSpeedTrialContext


def train(name: str) -> None:
    """Trains the class `MODULE:CLASS`. Raises ValueError or ImportError if it is none."""
    module, _, last = name.partition(":")
    sys.path.insert(0, os.getcwd())
    found = getattr(importlib.import_module(module), last, None)
    if not (inspect.isclass(found) and issubclass(found, DeepSpeedTrial)):
        raise ValueError(f"dsat: --trial {name}: {module} has no class {last!r} that is a "
                         "determined.pytorch.deepspeed.DeepSpeedTrial; expected MODULE:CLASS")
    context = core.init()
    random.seed(seed())
    torch.manual_seed(seed())
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed() % 2**32)
    if not _makes_process_group(found):
        _make_process_group()
    trial_context = DeepSpeedTrialContext(context)
    trial = found(trial_context)
    _make_process_group()  # If the class has left it to its engine, there is one already.
    trial_context._first_engine()
    Driver(trial, trial_context).run()


def _makes_process_group(trial_class: Any) -> bool:
    """Whether the class wants to make torch.distributed's process group itself."""
    if os.environ.get("DET_MANUAL_INIT_DISTRIBUTED"):
        return True
    bases = trial_class.__mro__[:trial_class.__mro__.index(DeepSpeedTrial)]
    with contextlib.suppress(OSError):  # A class of a notebook has no source.
        return any(re.search(r"\binit_(distributed|process_group)\(", inspect.getsource(each))
                   for each in bases)
    return False


def _make_process_group() -> None:
    if not torch.distributed.is_initialized():
        import deepspeed
        if "RANK" not in os.environ:  # No launcher has started this process.
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1",
                              MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        deepspeed.init_distributed(auto_mpi_discovery=False)


class Driver:
    """One training. `batch` counts what Determined calls batches: the optimizer's steps."""

    def __init__(self, trial: Any, context: DeepSpeedTrialContext) -> None:
        self._trial, self._context = trial, context
        self._mpu, self._core = context._mpu, context._core
        self._batch = 0
        self._checkpoint: Optional[int] = None  # The batch of the last checkpoint.
        self._validation: Optional[int] = None  # The batch of the last validation.
        self._metrics: List[Metrics] = []  # The ones to report next.
        self._callbacks: Dict[str, Any] = trial.build_callbacks()
        self._calls = 1 if context.use_pipeline_parallel or context._manual_accumulation else (
            context.num_micro_batches_per_slot)
        self._epoch_len: Optional[int] = None

    def run(self) -> None:
        """Trains to the end. All ranks do the same."""
        newest = core.newest_checkpoint()
        self._call("on_trial_startup", 0, newest)
        try:
            if newest is not None:
                self._load(newest)
            self._build_loaders()
            self._call("on_training_start")
            self._train_and_validate()
        finally:
            self._call("on_trial_shutdown")

    def _call(self, name: str, *arguments: Any) -> None:
        for callback in self._callbacks.values():
            getattr(callback, name)(*arguments)

    def _build_loaders(self) -> None:
        trial, context = self._trial, self._context
        training = validation = None
        if self._mpu.should_build_data_loader:
            skip = self._batch * context.num_micro_batches_per_slot
            training = self._sharded(trial.build_training_data_loader(), repeat=True, skip=skip)
            validation = self._sharded(trial.build_validation_data_loader(), repeat=False)
        self._validation_loader = validation
        self._iterator = None if training is None else forever(training)
        for engine in context.models:
            if isinstance(engine, PipelineEngine) and self._iterator is not None:
                engine.set_dataiterator(self._iterator)
        micro_batches = self._least(None if training is None else batches_in(training))
        if micro_batches is not None:
            self._epoch_len = max(1, micro_batches // context.num_micro_batches_per_slot)
        context._epoch_len = self._epoch_len
        self._num_validation_batches = self._count_validation_batches()

    def _sharded(self, loader: Any, repeat: bool, skip: int = 0) -> Any:
        """The loader's batches for this replica; all of them if a pass has fewer than replicas."""
        if isinstance(loader, DataLoader):
            replicas, rank = self._mpu.data_parallel_world_size, self._mpu.data_parallel_rank
            if not repeat and len(loader) < replicas:
                replicas, rank = 1, 0
            return loader.get_data_loader(repeat, skip, replicas, rank)
        if loader is None or self._context._any_loader:
            return loader
        raise TypeError(
            f"dsat: the data loader is a {type(loader).__name__}, which each rank would read as a "
            "whole; return a determined.pytorch.DataLoader, or call "
            "context.disable_dataset_reproducibility_checks() if it is sharded already")

    def _least(self, number: Optional[int]) -> Optional[int]:
        """The least number of all ranks that have one; None if none has."""
        known = [each for each in self._context.distributed.allgather(number) if each is not None]
        return min(known) if known else None

    def _count_validation_batches(self) -> Optional[int]:
        loader = self._validation_loader
        number = self._least(None if loader is None else batches_in(loader))
        if number is None or measures():
            return None
        steps = self._context.num_micro_batches_per_slot if (
            self._context.use_pipeline_parallel) else 1
        if number < steps:
            raise ValueError(f"dsat: the validation data has {number} batches for a replica; "
                             f"expected {steps} at least: give it more samples, or smaller batches")
        return number // steps

    def _train_and_validate(self) -> None:
        length = self._batches(max_length())
        experiment = config()
        validates = self._period(experiment, "min_validation_period")
        saves = self._period(experiment, "min_checkpoint_period")
        reports = int(experiment.get("scheduling_unit") or 100)
        if experiment.get("perform_initial_validation") and not (self._batch or measures()):
            self._validate()
        self._begin_window()
        is_last = self._batch >= length
        while not is_last:
            self._train_batch()
            if measures():
                continue
            is_last = self._batch == length or self._context.get_stop_requested()
            due = [is_last or (period and self._batch % period == 0) for period in (validates, saves)]
            if any(due) or self._batch % reports == 0:
                self._report()
            if due[0]:
                self._validate()
            if due[1]:
                self._save()
            if self._core.preempt.should_preempt():
                self._save()
                return

    def _batches(self, length: Any) -> int:
        batch_size = int(self._context.models[0].train_batch_size())
        return int(length.batches(self._epoch_len, batch_size))

    def _period(self, experiment: Dict[str, Any], key: str) -> int:
        length = length_of(experiment.get(key), key)
        return 0 if length is None or measures() else self._batches(length)

    def _begin_window(self) -> None:
        self._metrics = []
        self._context._reducers.reset()
        for engine in self._context.models:
            engine.train()

    def _train_batch(self) -> None:
        context = self._context
        context._batch_idx = self._batch
        if context.is_epoch_start():
            self._call("on_training_epoch_start", context.current_train_epoch())
        for _ in range(self._calls):
            returned = self._trial.train_batch(
                self._iterator, context.current_train_epoch(), self._batch)
            if self._mpu.should_report_metrics:
                self._metrics.append(scalars(returned, "train_batch"))
        self._check_accumulation()
        if measures():
            self._metrics.clear()
        if context.is_epoch_end():
            self._call("on_training_epoch_end", context.current_train_epoch())
        self._batch += 1

    def _check_accumulation(self) -> None:
        engine = self._context.models[0]
        steps = self._context.num_micro_batches_per_slot
        if not isinstance(engine, PipelineEngine) and engine.micro_steps % steps:
            raise RuntimeError(
                f"dsat: train_batch() has run {engine.micro_steps % steps} of {steps} micro-batches "
                "of a step: run one in each call, or, after disable_auto_grad_accumulation(), all")

    def _report(self) -> None:
        """Reports the means of the metrics since the last report."""
        distributed = self._context.distributed
        metrics = mean(self._metrics)
        metrics.update(self._context._reducers.reduce(True, distributed.allgather))
        if distributed.rank == 0:
            self._core.train.report_training_metrics(self._batch, metrics)
        self._call("on_training_workload_end", metrics, {})
        self._begin_window()

    @torch.no_grad()
    def _validate(self) -> None:
        if self._num_validation_batches is None or self._validation == self._batch:
            return
        self._validation = self._batch
        context, distributed = self._context, self._context.distributed
        context._reducers.reset()
        for engine in context.models:
            engine.eval()
        self._call("on_validation_start")
        self._call("on_validation_epoch_start")
        loader = self._validation_loader
        iterator = context._validation_iterator = None if loader is None else iter(loader)
        outputs: List[Metrics] = []
        for number in range(self._num_validation_batches):
            returned = self._trial.evaluate_batch(iterator, number)
            if self._mpu.should_report_metrics:
                outputs.append(scalars(returned, "evaluate_batch"))
                if outputs[-1].keys() != outputs[0].keys():
                    raise ValueError(
                        f"dsat: evaluate_batch() returned {list(outputs[-1])} for batch {number}, "
                        f"and {list(outputs[0])} before; expected the same names for all batches")
        self._call("on_validation_epoch_end", outputs)
        metrics = mean([each for each in distributed.allgather(mean(outputs)) if each])
        metrics.update(context._reducers.reduce(False, distributed.allgather))
        self._check_metric(metrics)
        if distributed.rank == 0:
            self._core.train.report_validation_metrics(self._batch, metrics)
        self._call("on_validation_end", metrics)
        self._begin_window()

    def _check_metric(self, metrics: Metrics) -> None:
        name = section("searcher").get("metric")
        if name is not None and name not in metrics:
            raise ValueError(f"dsat: searcher.metric is {name!r}, but the metrics of the validation "
                             f"are {', '.join(metrics) or 'none'}")

    def _save(self) -> None:
        if self._checkpoint == self._batch:
            return
        self._checkpoint = self._batch
        state: Dict[str, Any] = {
            "batch": self._batch, "random": _random_state(),
            "callbacks": {name: each.state_dict() for name, each in self._callbacks.items()}}
        self._call("on_checkpoint_save_start", state)
        metadata = {"steps_completed": self._batch}
        with self._core.checkpoint.store_path(metadata, shard=True) as (path, name):
            torch.save(state, path / self._state_file())
            self._trial.save(self._context, path)
            self._call("on_checkpoint_end", str(path))
            self._call("on_checkpoint_write_end", str(path))
        self._call("on_checkpoint_upload_end", name)

    def _state_file(self) -> str:
        return f"driver-rank{self._context.distributed.rank}.pt"

    def _load(self, name: str) -> None:
        with self._core.checkpoint.restore_path(name) as path:
            file = path / self._state_file()
            if not file.exists():
                raise FileNotFoundError(
                    f"dsat: {path} has no {file.name}, so that it is of fewer ranks; train with as "
                    "many, or give another --out")
            state = torch.load(file, map_location="cpu", weights_only=False)
            self._call("on_checkpoint_load_start", state)
            self._trial.load(self._context, path)
        self._batch = self._checkpoint = self._validation = state["batch"]
        _set_random_state(state["random"])
        for each, kept in state["callbacks"].items():
            if each in self._callbacks:
                self._callbacks[each].load_state_dict(kept)
        if self._context.distributed.rank == 0:
            print(f"dsat: continuing from {path}, after {self._batch} batches", flush=True)


def _random_state() -> Dict[str, Any]:
    """The states of the generators that exist, by the function that sets each."""
    state = {"random.setstate": random.getstate(), "torch.set_rng_state": torch.get_rng_state()}
    if "numpy" in sys.modules:
        state["numpy.random.set_state"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available():
        state["torch.cuda.set_rng_state"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: Dict[str, Any]) -> None:
    for name, value in state.items():
        module, _, function = name.rpartition(".")
        getattr(importlib.import_module(module), function)(value)
