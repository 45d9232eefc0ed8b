"""What a rank knows of its experiment: the file, the hyperparameters, and where its files are."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

from dsat._trial import measures, trial
from dsat.determined import Named


class InvalidHP(Exception):
    """The hyperparameters cannot be trained with."""


def hparams() -> Dict[str, Any]:
    """The hyperparameters of the experiment file, with the DeepSpeed config of the trial."""
    return dict(json.loads(os.environ.get("DSAT_HPARAMS") or "{}"))


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
        """The number of batches, at least 1, with `epoch` of them in an epoch."""
        count, unit, records = self.count, self.unit, config().get("records_per_epoch")
        if unit == "epochs" and records:
            count, unit = count * int(records), "records"
        if unit == "records":
            return max(1, -(-count // batch_size))
        if unit == "epochs" and epoch is None:
            raise ValueError("dsat: the length of an epoch is not known, because no rank has a "
                             "data loader with a length; set records_per_epoch in the experiment "
                             "file")
        return max(1, count * (epoch or 1) if unit == "epochs" else count)


def length_of(value: Any, key: str) -> Optional[Length]:
    """A length in the experiment file, such as 100 or {epochs: 2}; None if it is 0 or not given."""
    if isinstance(value, dict) and len(value) == 1:
        unit, count = next(iter(value.items()))
    else:
        unit, count = "batches", value or 0
    if unit not in ("batches", "epochs", "records") or not isinstance(count, int):
        raise ValueError(f"dsat: {key} of the experiment file is {value!r}; expected a number of "
                         "batches, or one of {batches: N}, {epochs: N}, {records: N}")
    return Length(count, unit) if count > 0 else None


def max_length() -> Length:
    """searcher.max_length. A trial that is measured trains until dsat ends it."""
    value = section("searcher").get("max_length")
    length = length_of(value, "searcher.max_length")
    if measures():
        return Length(1_000_000, length.unit if length else "batches")
    if length is None:
        raise ValueError("dsat: searcher.max_length of the experiment file is missing; expected "
                         "how long to train, such as {batches: 1000}")
    return length


class TrialInfo(Named):
    """The trial of get_cluster_info()."""

    def __init__(self) -> None:
        running = trial()
        self.trial_id = running.id if running is not None else 0
        self.trial_seed = seed()
        self.hparams = hparams()
        self._config = config()


class ClusterInfo(Named):
    """What a rank asks of its cluster, which is the machines that dsat was given."""

    def __init__(self) -> None:
        from .core import newest_checkpoint
        self.trial = TrialInfo()
        self.latest_checkpoint = newest_checkpoint()
        self.slot_ids = list(range(int(os.environ.get("LOCAL_WORLD_SIZE") or 1)))
        if os.environ.get("CROSS_SIZE", "1") == "1":  # A rank does not know several hosts.
            self.container_addrs = [os.environ.get("MASTER_ADDR") or "127.0.0.1"]


def get_cluster_info() -> ClusterInfo:
    """The experiment and its machines, as far as a rank of dsat knows them."""
    return ClusterInfo()
