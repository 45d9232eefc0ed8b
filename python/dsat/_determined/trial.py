"""The base of trial classes, and the context that they are given."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine

from dsat import overwrite_deepspeed_config
from dsat._determined import experiment
from dsat._determined.core import Context, DistributedContext
from dsat._determined.data import Reducers
from dsat._trial import hparams

__all__ = ["overwrite_deepspeed_config"]


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
    return ModelParallelUnit(grid.get_data_parallel_rank(), grid.get_data_parallel_world_size(),
                             True, grid.get_slice_parallel_rank() == 0 and stage in (0, last))


class _NoWriter:
    """Stands for TensorBoard's writer where TensorBoard is not installed."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **keywords: None


class DeepSpeedTrialContext(experiment.Named):
    """What a trial class asks for and says about itself; driver.py reads the rest."""

    def __init__(self, core: Context, given: Optional[Dict[str, Any]] = None,
                 file: Optional[Dict[str, Any]] = None) -> None:
        """`given` and `file` have hyperparameters and keys that the experiment file lacks."""
        self._hparams = {**(given or {}), **hparams()}
        self._file = {**(file or {}), **experiment.config(), "hyperparameters": self._hparams}
        self._core, self.distributed = core, core.distributed
        accelerator = get_accelerator()
        if accelerator.device_name() != "cpu":
            accelerator.set_device(self.distributed.local_rank)
        self.device = torch.device(accelerator.current_device_name())
        self.models: List[Any] = []
        self._mpu = make_data_parallel_mpu(core.distributed)
        self._reducers = Reducers()
        self.wrap_reducer = self._reducers.wrap
        self._manual_accumulation = self._any_loader = self._stop_requested = False
        self._epoch_len: Optional[int] = None
        self._batch_idx = 0
        self._validation_iterator: Any = None
        self._writer: Any = None

    get_trial_seed = staticmethod(experiment.seed)

    def get_hparams(self) -> Dict[str, Any]:
        return dict(self._hparams)

    def get_experiment_config(self) -> Dict[str, Any]:
        return dict(self._file)

    def get_hparam(self, name: str) -> Any:
        """One hyperparameter. Raises KeyError with the names that there are."""
        if name not in self._hparams:
            raise KeyError(f"dsat: hyperparameters has no {name!r}; it has "
                           f"{', '.join(self._hparams)}")
        return self._hparams[name]

    def get_data_config(self) -> Dict[str, Any]:
        return dict(self._file.get("data") or {})

    def wrap_model_engine(self, model: Any) -> Any:
        """Registers an engine of deepspeed.initialize(). The first one decides about the batch."""
        if isinstance(model, PipelineEngine):
            self._mpu = self._mpu if self.models else make_deepspeed_mpu(model.grid)
            original = model.eval_batch

            def eval_batch(data_iter: Any = None, *arguments: Any, **keywords: Any) -> Any:
                data_iter = self._validation_iterator if data_iter is None else data_iter
                return original(data_iter, *arguments, **keywords)
            model.eval_batch = eval_batch
        self.models.append(model)
        return model

    def set_mpu(self, mpu: ModelParallelUnit) -> None:
        self._mpu = mpu

    def disable_auto_grad_accumulation(self) -> None:
        """train_batch() is called once per step, and runs all of its micro-batches itself."""
        self._manual_accumulation = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Loaders other than determined.pytorch.DataLoader are used as they are."""
        self._any_loader = True

    def _first_engine(self) -> Any:
        if not self.models or self.models[0] is None:
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

    _train_micro_batch_size_per_gpu = train_micro_batch_size_per_gpu  # Published code has it.

    def to_device(self, data: Any) -> Any:
        """A batch on this rank's device: tensors, in lists, tuples and mappings."""
        if hasattr(data, "to"):
            return data.to(self.device, non_blocking=True)
        if isinstance(data, dict):
            return {key: self.to_device(value) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            items = map(self.to_device, data)
            return type(data)(*items) if hasattr(data, "_fields") else type(data)(items)
        return data

    def current_train_epoch(self) -> int:
        return self._batch_idx // self._epoch_len if self._epoch_len else 0

    def is_epoch_start(self) -> bool:
        return self._batch_idx % (self._epoch_len or self._batch_idx + 1) == 0

    def is_epoch_end(self) -> bool:
        return bool(self._epoch_len) and (self._batch_idx + 1) % (self._epoch_len or 1) == 0

    def get_tensorboard_writer(self) -> Any:
        """TensorBoard's writer of this rank; one without effect if TensorBoard is not installed."""
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
                self._writer = SummaryWriter(os.fspath(self._core.train.get_tensorboard_path()))
            except ImportError:
                self._writer = _NoWriter()
        return self._writer

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Ends the training after this batch, with a validation and a checkpoint."""
        self._stop_requested = stop_requested


class DeepSpeedTrial:
    """The base of classes that train by batches.

    They have __init__(context), build_training_data_loader(), build_validation_data_loader(),
    train_batch(iterator, epoch_idx, batch_idx) and evaluate_batch(iterator, batch_idx), and may
    replace the methods below.
    """

    def build_callbacks(self) -> Dict[str, Any]:
        return {}

    def save(self, context: DeepSpeedTrialContext, path: Any) -> None:
        """Writes a checkpoint of each engine to a folder; all ranks call it."""
        for number, engine in enumerate(context.models):
            engine.save_checkpoint(os.fspath(path), tag=f"engine{number}")

    def load(self, context: DeepSpeedTrialContext, path: Any) -> None:
        """Reads what save() has written."""
        for number, engine in enumerate(context.models):
            if engine.load_checkpoint(os.fspath(path), tag=f"engine{number}")[0] is None:
                raise RuntimeError(f"dsat: {path} has no checkpoint of engine {number}")
