"""Data loaders that give each data-parallel rank its own batches."""
from __future__ import annotations

import functools
import itertools
import signal
from typing import Any, Iterator, List, Optional

import torch
from torch.utils import data

from ._experiment import seed


class _Shuffled(data.Sampler):  # type: ignore[type-arg]
    """All indices in an order that depends on the seed and the epoch alone."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(seed() + self.epoch)
        return iter(torch.randperm(len(self), generator=generator).tolist())


class ShardedBatches(data.Sampler):  # type: ignore[type-arg]
    """Every `replicas`-th batch of a batch sampler, beginning with number `rank`."""

    def __init__(self, batch_sampler: Any, repeat: bool, skip: int, replicas: int,
                 rank: int) -> None:
        """With `repeat`, epoch follows epoch without an end; `skip` batches are left out."""
        self.batch_sampler = batch_sampler
        self._repeat, self._skip, self._replicas, self._rank = repeat, skip, replicas, rank

    def __len__(self) -> int:
        """The batches of an epoch."""
        return len(self.batch_sampler) // self._replicas

    def __iter__(self) -> Iterator[List[int]]:
        length = len(self.batch_sampler)
        if length == 0:
            raise ValueError("dsat: the data has no batch: it has fewer samples than one batch")
        first = self._rank + self._skip * self._replicas
        begin = first // length
        for epoch in itertools.count(begin) if self._repeat else [begin]:
            sampler = getattr(self.batch_sampler, "sampler", None)
            if isinstance(sampler, _Shuffled):
                sampler.epoch = epoch
            for at, batch in enumerate(self.batch_sampler, epoch * length):
                if at >= first and at % self._replicas == self._rank:
                    yield batch


def _init_worker(given: Any, number: int) -> None:
    """Lets a worker live on when `dsat train` asks all processes to end: the rank still saves."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if given is not None:
        given(number)


class DataLoader:
    """What a trial class returns: the arguments of PyTorch's loader, before it is sharded."""

    def __init__(self, dataset: Any, batch_size: Optional[int] = 1, shuffle: bool = False,
                 sampler: Any = None, batch_sampler: Any = None, num_workers: int = 0,
                 collate_fn: Any = None, pin_memory: bool = False, drop_last: bool = False,
                 worker_init_fn: Any = None, **arguments: Any) -> None:
        """As PyTorch's loader. Raises TypeError for a data set without a length."""
        if not hasattr(dataset, "__len__"):
            raise TypeError("dsat: a data set without a length cannot be sharded; return PyTorch's "
                            "DataLoader, and call disable_dataset_reproducibility_checks()")
        if batch_sampler is None:
            sampler = sampler or (
                _Shuffled(dataset) if shuffle else data.SequentialSampler(dataset))
            batch_sampler = data.BatchSampler(sampler, batch_size or 1, drop_last)
        self.dataset, self.batch_size, self.batch_sampler = dataset, batch_size, batch_sampler
        self._arguments = {"num_workers": num_workers, "collate_fn": collate_fn,
                           "pin_memory": pin_memory, **arguments,
                           "worker_init_fn": functools.partial(_init_worker, worker_init_fn)}

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get_data_loader())

    def get_data_loader(self, repeat: bool = False, skip: int = 0, num_replicas: int = 1,
                        rank: int = 0) -> Any:
        """PyTorch's loader of one replica's batches (ShardedBatches)."""
        batches = ShardedBatches(self.batch_sampler, repeat, skip, num_replicas, rank)
        loader: Any = data.DataLoader(self.dataset, batch_sampler=batches, **self._arguments)
        # The import hook gives loaders with the script's batch size the trial's.
        loader.__dict__["batch_size"] = getattr(self.batch_sampler, "batch_size", None)
        return loader


def forever(loader: Any) -> Iterator[Any]:
    """The batches of a loader, again and again."""
    first = iter(loader)  # Now, because the import hook sets the batch size here.

    def batches() -> Iterator[Any]:
        number = -1
        for number, batch in enumerate(first):
            yield batch
        while number >= 0:
            yield from loader
        raise ValueError("dsat: the training data loader has no batch")
    return batches()


def length_of(loader: Any) -> Optional[int]:
    """The batches of a loader, also within DeepSpeed's RepeatingLoader; None if it cannot say."""
    inner = getattr(loader, "loader", loader)
    try:
        return len(inner)
    except TypeError:
        return None
