"""Trains a trial: the loop around its train_batch() and evaluate_batch().

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
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import torch
from deepspeed.runtime.pipe.engine import PipelineEngine

from dsat._determined import core, data, experiment
from dsat._determined.experiment import Length, config, length_of, section, seed
from dsat._determined.trial import (DeepSpeedTrial, DeepSpeedTrialContext, ModelParallelUnit,
                                    make_data_parallel_mpu, make_deepspeed_mpu,
                                    overwrite_deepspeed_config)
from dsat._trial import be_only_rank, measures

__all__ = ["ModelParallelUnit", "make_data_parallel_mpu", "make_deepspeed_mpu",
           "overwrite_deepspeed_config"]


class Plan(NamedTuple):
    """How long to train, and what to do when. A period of 0 batches means never."""

    length: Length
    validation: Length
    checkpoint: Length
    reports: Length
    validates_first: bool
    saves_validated: bool = False  # A checkpoint follows each validation.


def _plan_of_file() -> Plan:
    file = config()
    return Plan(experiment.max_length(), length_of(file.get("min_validation_period")),
                length_of(file.get("min_checkpoint_period")),
                length_of(file.get("scheduling_unit") or 100),
                bool(file.get("perform_initial_validation")))


def train(name: str) -> None:
    """Trains the class `MODULE:CLASS`. Raises ValueError or ImportError if it is none."""
    module, _, last = name.partition(":")
    sys.path.insert(0, os.getcwd())
    found = getattr(importlib.import_module(module), last, None)
    if not (inspect.isclass(found) and issubclass(found, DeepSpeedTrial)):
        raise ValueError(f"dsat: --trial {name}: {module} has no class {last!r} that is a "
                         "determined.pytorch.deepspeed.DeepSpeedTrial; expected MODULE:CLASS")
    with init(makes_group=not _makes_process_group(found)) as context:
        trial: Any = found(context)  # type: ignore[call-arg]
        _make_process_group()  # A class that wanted to may have left it to its engine.
        Driver(trial, context, _plan_of_file()).run(core.newest_checkpoint())


@contextlib.contextmanager
def init(*, distributed: Optional[core.DistributedContext] = None, hparams: Any = None,
         exp_conf: Any = None, enable_tensorboard_logging: bool = True,
         makes_group: bool = True) -> Iterator[DeepSpeedTrialContext]:
    """The context of a trial that the script makes itself.

    Args:
        distributed: the ranks, if the script has initialized torch.distributed itself.
        hparams, exp_conf: hyperparameters, and other keys, that the experiment file lacks.
        enable_tensorboard_logging: has no effect, since nothing is uploaded.
        makes_group: whether to initialize torch.distributed, unless DET_MANUAL_INIT_DISTRIBUTED is
            set.
    """
    random.seed(seed())
    torch.manual_seed(seed())
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed() % 2**32)
    if makes_group and not os.environ.get("DET_MANUAL_INIT_DISTRIBUTED"):
        _make_process_group()
    with core.init(distributed=distributed) as context:
        yield DeepSpeedTrialContext(context, hparams, exp_conf)


class Trainer:
    """Trains a trial that the script has made in the context of init()."""

    def __init__(self, trial: DeepSpeedTrial, context: DeepSpeedTrialContext) -> None:
        self._trial, self._context = trial, context

    def fit(self, checkpoint_period: Optional[Length] = None,
            validation_period: Optional[Length] = None, max_length: Optional[Length] = None,
            reporting_period: Length = Length(100, "batches"), checkpoint_policy: str = "best",
            latest_checkpoint: Optional[str] = None, step_zero_validation: bool = False,
            test_mode: bool = False, profiling_enabled: bool = False) -> None:
        """Trains to the end.

        Args:
            checkpoint_period, validation_period: there is one of each at the end in any case.
            max_length: searcher.max_length by default.
            reporting_period: of the metrics of training.
            checkpoint_policy: "none", or there is a checkpoint after each validation; the newest
                and the best one are kept.
            latest_checkpoint: what get_cluster_info().latest_checkpoint says; None begins anew.
            step_zero_validation: whether to validate before the first step.
            test_mode: trains and validates one batch.
            profiling_enabled: has no effect, since dsat measures by itself.
        """
        if checkpoint_policy not in ("best", "all", "none"):
            raise ValueError(f"dsat: checkpoint_policy is {checkpoint_policy!r}; expected 'best', "
                             "'all' or 'none'")
        never, one = Length(0, "batches"), Length(1, "batches")
        plan = Plan(experiment.max_length(one if test_mode else max_length),
                    validation_period or never, checkpoint_period or never, reporting_period,
                    step_zero_validation, checkpoint_policy != "none")
        Driver(self._trial, self._context, plan).run(latest_checkpoint)


def _makes_process_group(trial_class: Any) -> bool:
    """Whether the class wants to make torch.distributed's process group itself."""
    bases = trial_class.__mro__[:trial_class.__mro__.index(DeepSpeedTrial)]
    with contextlib.suppress(OSError):  # A class of a notebook has no source.
        source = "".join(map(inspect.getsource, bases))
        return bool(os.environ.get("DET_MANUAL_INIT_DISTRIBUTED")
                    or re.search(r"\binit_(distributed|process_group)\(", source))
    return False


def _make_process_group() -> None:
    if torch.distributed.is_initialized():
        return
    import deepspeed
    be_only_rank()
    deepspeed.init_distributed(auto_mpi_discovery=False)


class Driver:
    """One training. `batch` counts what Determined calls batches: the optimizer's steps."""

    def __init__(self, trial: Any, context: DeepSpeedTrialContext, plan: Plan) -> None:
        context._first_engine()
        self._trial, self._context, self._plan = trial, context, plan
        self._mpu, self._core = context._mpu, context._core
        self._allgather = context.distributed.allgather
        self._steps = context.num_micro_batches_per_slot
        self._batch = 0
        self._metrics: List[data.Metrics] = []  # The ones to report next.
        self._callbacks: Dict[str, Any] = trial.build_callbacks()

    def run(self, newest: Optional[str]) -> None:
        """Trains to the end, from a checkpoint if there is one. All ranks do the same."""
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
            training = self._sharded(trial.build_training_data_loader(), True)
            validation = self._sharded(trial.build_validation_data_loader(), False)
        self._iterator = None if training is None else data.forever(training)
        self._validation_loader = validation
        for engine in context.models:
            if isinstance(engine, PipelineEngine) and self._iterator is not None:
                engine.set_dataiterator(self._iterator)
        # Ranks without a loader, or with a longer one, do as the others.
        lengths = self._allgather([data.length_of(each) for each in (training, validation)])
        micro_batches, self._validation_batches = (
            min((each for each in of if each is not None), default=None) for of in zip(*lengths))
        if micro_batches is not None:
            context._epoch_len = max(1, micro_batches // self._steps)
        steps = self._steps if context.use_pipeline_parallel else 1
        if self._validation_batches is not None and not measures():
            if self._validation_batches < steps:
                raise ValueError(
                    f"dsat: the validation data has {self._validation_batches} batches for a "
                    f"replica; expected {steps} at least: more samples, or smaller batches")
            self._validation_batches //= steps

    def _sharded(self, loader: Any, trains: bool) -> Any:
        """The loader's batches for this replica; all of them if a pass has fewer than replicas."""
        if isinstance(loader, data.DataLoader):
            replicas, rank = self._mpu.data_parallel_world_size, self._mpu.data_parallel_rank
            if not trains and len(loader) < replicas:
                replicas, rank = 1, 0
            return loader.get_data_loader(trains, self._batch * self._steps if trains else 0,
                                          replicas, rank)
        if loader is None or self._context._any_loader:
            return loader
        raise TypeError(
            f"dsat: the data loader is a {type(loader).__name__}, which each rank would read as a "
            "whole; return a determined.pytorch.DataLoader, or call "
            "context.disable_dataset_reproducibility_checks() if it is sharded already")

    def _train_and_validate(self) -> None:
        plan = self._plan
        length, reports = self._batches(plan.length), self._batches(plan.reports)
        validates, saves = (0 if measures() else self._batches(period)
                            for period in (plan.validation, plan.checkpoint))
        if plan.validates_first and not (self._batch or measures()):
            self._validate()
        self._begin_window()
        is_last = self._batch >= length
        while not is_last:
            self._train_batch()
            if measures():
                continue
            is_last = self._batch == length or self._context._stop_requested
            is_due = [is_last or (period > 0 and self._batch % period == 0)
                      for period in (validates, saves)]
            is_due[1] = is_due[1] or is_due[0] and plan.saves_validated
            if any(is_due) or self._batch % max(1, reports) == 0:
                self._report()
            if is_due[0]:
                self._validate()
            preempted = self._core.preempt.should_preempt()
            if is_due[1] or preempted:
                self._save()
            is_last = is_last or preempted

    def _batches(self, length: Length) -> int:
        return length.batches(self._context._epoch_len,
                              int(self._context.models[0].train_batch_size()))

    def _begin_window(self) -> None:
        self._metrics = []
        for reducer, *_ in self._context._reducers:
            reducer.reset()
        for engine in self._context.models:
            engine.train()

    def _train_batch(self) -> None:
        context, engine = self._context, self._context.models[0]
        context._batch_idx = self._batch
        is_whole = context.use_pipeline_parallel or context._manual_accumulation
        epoch = context.current_train_epoch()
        if context.is_epoch_start():
            self._call("on_training_epoch_start", epoch)
        for _ in range(1 if is_whole else self._steps):
            returned = self._trial.train_batch(self._iterator, epoch, self._batch)
            if self._mpu.should_report_metrics:
                self._metrics.append(data.scalars(returned, "train_batch"))
        if measures():
            self._metrics.clear()
        if not isinstance(engine, PipelineEngine) and engine.micro_steps % self._steps:
            raise RuntimeError(
                f"dsat: train_batch() has run {engine.micro_steps % self._steps} of {self._steps} "
                "micro-batches of a step: run one in each call, or, after "
                "disable_auto_grad_accumulation(), all")
        if context.is_epoch_end():
            self._call("on_training_epoch_end", epoch)
        self._batch += 1

    def _report(self) -> None:
        """Reports the means of the metrics since the last report."""
        metrics = data.mean(self._metrics)
        metrics.update(self._context._reducers.reduce(True, self._allgather))
        if self._context.distributed.rank == 0:
            self._core.train.report_training_metrics(self._batch, metrics)
        self._call("on_training_workload_end", metrics, {})
        self._begin_window()

    @torch.no_grad()
    def _validate(self) -> None:
        if self._validation_batches is None:
            return
        self._begin_window()
        for engine in self._context.models:
            engine.eval()
        self._call("on_validation_start")
        self._call("on_validation_epoch_start")
        loader = self._validation_loader
        iterator = self._context._validation_iterator = None if loader is None else iter(loader)
        outputs: List[data.Metrics] = []
        for number in range(self._validation_batches):
            returned = self._trial.evaluate_batch(iterator, number)
            if self._mpu.should_report_metrics:
                outputs.append(data.scalars(returned, "evaluate_batch"))
                if outputs[-1].keys() != outputs[0].keys():
                    raise ValueError(
                        f"dsat: evaluate_batch() returned {list(outputs[-1])} for batch {number}, "
                        f"and {list(outputs[0])} before; expected the same names for all batches")
        self._call("on_validation_epoch_end", outputs)
        metrics = data.mean([each for each in self._allgather(data.mean(outputs)) if each])
        metrics.update(self._context._reducers.reduce(False, self._allgather))
        name = section("searcher").get("metric")
        if name is not None and name not in metrics:
            raise ValueError(f"dsat: searcher.metric is {name!r}, but the metrics of the validation "
                             f"are {', '.join(metrics) or 'none'}")
        if self._context.distributed.rank == 0:
            self._core.train.report_validation_metrics(self._batch, metrics)
        self._call("on_validation_end", metrics)
        self._begin_window()

    def _state_file(self, path: Any) -> Any:
        return path / f"driver-rank{self._context.distributed.rank}.pt"

    def _save(self) -> None:
        state = {"batch": self._batch, "random": _random_state(),
                 "callbacks": {name: each.state_dict() for name, each in self._callbacks.items()}}
        self._call("on_checkpoint_save_start", state)
        metadata = {"steps_completed": self._batch}
        with self._core.checkpoint.store_path(metadata, shard=True) as (path, name):
            torch.save(state, self._state_file(path))
            self._trial.save(self._context, path)
            self._call("on_checkpoint_end", str(path))
            self._call("on_checkpoint_write_end", str(path))
        self._call("on_checkpoint_upload_end", name)

    def _load(self, name: str) -> None:
        with self._core.checkpoint.restore_path(name) as path:
            state = torch.load(self._state_file(path), map_location="cpu", weights_only=False)
            self._call("on_checkpoint_load_start", state)
            self._trial.load(self._context, path)
        self._batch = state["batch"]
        for function, value in state["random"].items():
            module, _, function = function.rpartition(".")
            getattr(importlib.import_module(module), function)(value)
        for each, kept in state["callbacks"].items():
            if each in self._callbacks:
                self._callbacks[each].load_state_dict(kept)
        if self._context.distributed.rank == 0:
            print(f"dsat: continuing from {path}, after {self._batch} batches", flush=True)


def _random_state() -> Dict[str, Any]:
    """The states of the generators that exist, by the function that sets each."""
    state: Dict[str, Any] = {"random.setstate": random.getstate(),
                             "torch.set_rng_state": torch.get_rng_state()}
    if "numpy" in sys.modules:
        state["numpy.random.set_state"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available():
        state["torch.cuda.set_rng_state"] = torch.cuda.get_rng_state()
    return state
