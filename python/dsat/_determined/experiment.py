"""What a rank knows of its experiment: the file, the hyperparameters, and where its files are."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple, Optional

from dsat._trial import hparams, measures, trial
from dsat.determined import lacks

LOG_FORMAT = "%(levelname)s [%(process)d] %(name)s: %(message)s"


class InvalidHP(Exception):
    """The hyperparameters cannot be trained with."""


class Named:
    """An object whose missing attributes are named together with those that it has."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        has = " ".join(each for each in dir(self) if not each.startswith("_"))
        raise AttributeError(lacks(type(self).__name__, name, has))


def config() -> Dict[str, Any]:
    """The experiment file."""
    return {**json.loads(os.environ.get("DSAT_EXPERIMENT") or "{}"), "hyperparameters": hparams()}


def section(name: str) -> Dict[str, Any]:
    """A section of the experiment file; {} if there is none."""
    return dict(config().get(name) or {})


def seed() -> int:
    """reproducibility.experiment_seed; 0 if it is not given."""
    return int(section("reproducibility").get("experiment_seed") or 0)


def folder() -> Path:
    """The folder of this run: that of `dsat train`, or dsat-out/by-hand without dsat."""
    return Path(os.environ.get("DSAT_TRIAL_DIR") or "dsat-out/by-hand").absolute()


class Length(NamedTuple):
    """A length of training, or the period between two validations or checkpoints."""

    count: int
    unit: str  # "batches", "epochs" or "records".

    def batches(self, epoch: Optional[int], batch_size: int) -> int:
        """The number of batches, with `epoch` of them in an epoch; 0 if the length is 0."""
        per_epoch = config().get("records_per_epoch")
        if self.unit == "batches":
            return self.count
        if self.unit == "records" or per_epoch:
            return -(-self.count * int(per_epoch if self.unit == "epochs" else 1) // batch_size)
        if epoch is None:
            raise ValueError("dsat: no rank has a data loader whose length is an epoch's; set "
                             "records_per_epoch in the experiment file")
        return self.count * epoch


def length_of(value: Any) -> Length:
    """A length in the experiment file, such as 100 or {epochs: 2}; 0 batches if it is None."""
    unit, count = next(iter(value.items())) if isinstance(value, dict) else ("batches", value or 0)
    return Length(int(count), unit)


def _unit(unit: str) -> Callable[[Any], Length]:
    def length(value: Any) -> Length:
        if not isinstance(value, int):
            raise TypeError(f"dsat: {value!r} {unit}: expected a whole number")
        return Length(value, unit)
    return length


Batch, Epoch = _unit("batches"), _unit("epochs")


def max_length(given: Optional[Length] = None) -> Length:
    """`given`, or searcher.max_length. A trial that is measured trains until dsat ends it."""
    length = given or length_of(section("searcher").get("max_length"))
    if not measures() and length.count < 1:
        raise ValueError("dsat: searcher.max_length of the experiment file is missing; expected "
                         "how long to train, such as {batches: 1000}")
    return Length(1_000_000, length.unit) if measures() else length


class TrialInfo(Named):
    """The trial of get_cluster_info()."""

    def __init__(self) -> None:
        running = trial()
        self.trial_id = running.id if running is not None else 0
        self.trial_seed, self.hparams, self._config = seed(), hparams(), config()


class ClusterInfo(Named):
    """What a rank asks of its cluster, which is the machines that dsat was given."""

    def __init__(self) -> None:
        from dsat._determined.core import newest_checkpoint
        self.trial, self.latest_checkpoint = TrialInfo(), newest_checkpoint()
        self.slot_ids = list(range(int(os.environ.get("LOCAL_WORLD_SIZE") or 1)))
        if os.environ.get("CROSS_SIZE", "1") == "1":  # A rank does not know several hosts.
            self.container_addrs = [os.environ.get("MASTER_ADDR") or "127.0.0.1"]


get_cluster_info = ClusterInfo
