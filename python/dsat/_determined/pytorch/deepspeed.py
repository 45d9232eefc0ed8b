"""The base of trial classes, and the context that they are given."""
from __future__ import annotations

import abc
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine

from dsat import overwrite_deepspeed_config
from dsat.determined import Named, missing_names

from .. import _experiment
from .._reducers import MetricReducer, Reducers
from ..core import Context, DistributedContext


@dataclass
class ModelParallelUnit:
    """What a rank does where ranks share a model."""

    data_parallel_rank: int
    data_parallel_world_size: int
    should_report_metrics: bool  # Whether its train_batch() and evaluate_batch() return metrics.
    should_build_data_loader: bool  # False: its iterators are None.


def make_data_parallel_mpu(distributed: DistributedContext) -> ModelParallelUnit:
    """Each rank has a whole model."""
    return ModelParallelUnit(distributed.rank, distributed.size, True, True)


def make_deepspeed_mpu(grid: Any) -> ModelParallelUnit:
    """The grid of a pipeline, of which the first and the last stage need data."""
    stage, last = grid.get_pipe_parallel_rank(), grid.get_pipe_parallel_world_size() - 1
    needs_data = grid.get_slice_parallel_rank() == 0 and stage in (0, last)
    return ModelParallelUnit(grid.get_data_parallel_rank(), grid.get_data_parallel_world_size(),
                             True, needs_data)


class _NoWriter:
    """Stands for TensorBoard's writer where TensorBoard is not installed."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **keywords: None


class DeepSpeedTrialContext(Named):
    """What a trial class asks for and says about itself. The driver (_driver.py) reads the rest."""

    def __init__(self, core: Context) -> None:
        self._core = core
        self.distributed = core.distributed
        accelerator = get_accelerator()
        if accelerator.device_name() != "cpu":
            accelerator.set_device(self.distributed.local_rank)
        self.device = torch.device(accelerator.current_device_name())
        self.models: List[Any] = []
        self._mpu = make_data_parallel_mpu(core.distributed)
        self._reducers = Reducers()
        self._manual_accumulation = False
        self._any_loader = False
        self._epoch_len: Optional[int] = None
        self._batch_idx = 0
        self._stop_requested = False
        self._validation_iterator: Any = None
        self._writer: Any = None

    def get_hparams(self) -> Dict[str, Any]:
        return _experiment.hparams()

    def get_hparam(self, name: str) -> Any:
        """One hyperparameter. Raises KeyError with the names that there are."""
        known = _experiment.hparams()
        if name not in known:
            raise KeyError(f"dsat: hyperparameters has no {name!r}; it has {', '.join(known)}")
        return known[name]

    def get_experiment_config(self) -> Dict[str, Any]:
        return _experiment.config()

    def get_data_config(self) -> Dict[str, Any]:
        return _experiment.section("data")

    def get_trial_seed(self) -> int:
        return _experiment.seed()

    def get_trial_id(self) -> int:
        return _experiment.TrialInfo().trial_id

    def wrap_model_engine(self, model: Any) -> Any:
        """Registers an engine of deepspeed.initialize(). The first one decides about the batch."""
        if isinstance(model, PipelineEngine):
            if not self.models:
                self._mpu = make_deepspeed_mpu(model.grid)
            self._give_iterator(model)
        self.models.append(model)
        return model

    def _give_iterator(self, engine: Any) -> None:
        """Lets eval_batch() without an iterator use the one of this validation."""
        original = engine.eval_batch

        def eval_batch(data_iter: Any = None, *arguments: Any, **keywords: Any) -> Any:
            given = self._validation_iterator if data_iter is None else data_iter
            return original(given, *arguments, **keywords)
        engine.eval_batch = eval_batch

    def set_mpu(self, mpu: ModelParallelUnit) -> None:
        if not self.models:
            raise RuntimeError("dsat: set_mpu() needs an engine; call wrap_model_engine() before")
        self._mpu = mpu

    def wrap_reducer(self, reducer: Any, name: Optional[str] = None, for_training: bool = True,
                     for_validation: bool = True) -> MetricReducer:
        """Registers a function of a list of values, or a MetricReducer, and returns the latter."""
        return self._reducers.wrap(reducer, name, for_training, for_validation)

    def disable_auto_grad_accumulation(self) -> None:
        """train_batch() is called once per step, and runs all of its micro-batches itself."""
        self._manual_accumulation = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Loaders other than determined.pytorch.DataLoader are used as they are."""
        self._any_loader = True

    def _first_engine(self) -> Any:
        if not self.models:
            raise RuntimeError("dsat: the trial class has no engine yet; pass the engine of "
                               "deepspeed.initialize() to context.wrap_model_engine()")
        return self.models[0]

    @property
    def use_pipeline_parallel(self) -> bool:
        return any(isinstance(model, PipelineEngine) for model in self.models)

    @property
    def train_micro_batch_size_per_gpu(self) -> int:
        return int(self._first_engine().train_micro_batch_size_per_gpu())

    @property
    def num_micro_batches_per_slot(self) -> int:
        return int(self._first_engine().gradient_accumulation_steps())

    # Published code uses these two names as well.
    _train_micro_batch_size_per_gpu = train_micro_batch_size_per_gpu
    _num_micro_batches_per_slot = num_micro_batches_per_slot

    def to_device(self, data: Any) -> Any:
        """A batch on this rank's device: tensors, in lists, tuples and mappings."""
        if hasattr(data, "to"):
            return data.to(self.device, non_blocking=True)
        if isinstance(data, dict):
            return {key: self.to_device(value) for key, value in data.items()}
        if isinstance(data, tuple) and hasattr(data, "_fields"):
            return type(data)(*map(self.to_device, data))
        if isinstance(data, (list, tuple)):
            return type(data)(map(self.to_device, data))
        return data

    def current_train_batch(self) -> int:
        return self._batch_idx

    def current_train_epoch(self) -> int:
        return self._batch_idx // self._epoch_len if self._epoch_len else 0

    def is_epoch_start(self) -> bool:
        return self._batch_idx % self._epoch_len == 0 if self._epoch_len else self._batch_idx == 0

    def is_epoch_end(self) -> bool:
        return bool(self._epoch_len) and (self._batch_idx + 1) % (self._epoch_len or 1) == 0

    def get_tensorboard_path(self) -> Any:
        return self._core.train.get_tensorboard_path()

    def get_tensorboard_writer(self) -> Any:
        """TensorBoard's writer of this rank; one without effect if TensorBoard is not installed."""
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
                self._writer = SummaryWriter(os.fspath(self.get_tensorboard_path()))
            except ImportError:
                self._writer = _NoWriter()
        return self._writer

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Ends the training after this batch, with a validation and a checkpoint."""
        self._stop_requested = stop_requested

    def get_stop_requested(self) -> bool:
        return self._stop_requested


class DeepSpeedTrial(abc.ABC):
    """The base of classes that train by batches. save() and load() may be replaced."""

    @abc.abstractmethod
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        """Makes the engines and passes each to context.wrap_model_engine()."""

    @abc.abstractmethod
    def build_training_data_loader(self) -> Any:
        """A DataLoader of micro-batches."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> Any:
        """Likewise, for one pass."""

    @abc.abstractmethod
    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Trains on a micro-batch, and on a whole batch with a pipeline or manual accumulation."""

    @abc.abstractmethod
    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> Any:
        """Returns the metrics of a batch."""

    def build_callbacks(self) -> Dict[str, Any]:
        return {}

    def save(self, context: DeepSpeedTrialContext, path: Any) -> None:
        """Writes a checkpoint of each engine to a folder; all ranks call it."""
        for number, engine in enumerate(context.models):
            engine.save_checkpoint(os.fspath(path), tag=f"engine{number}")

    def load(self, context: DeepSpeedTrialContext, path: Any) -> None:
        """Reads what save() has written."""
        for number, engine in enumerate(context.models):
            loaded, _ = engine.load_checkpoint(os.fspath(path), tag=f"engine{number}")
            if loaded is None:
                raise RuntimeError(f"dsat: {path} has no checkpoint of engine {number}")


__all__ = ["DeepSpeedTrial", "DeepSpeedTrialContext", "ModelParallelUnit", "make_data_parallel_mpu",
           "make_deepspeed_mpu", "overwrite_deepspeed_config"]
__getattr__ = missing_names(__name__)
