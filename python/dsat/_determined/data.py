"""What trial classes train on and return: sharded data loaders, metrics, and their reducers."""
from __future__ import annotations

import functools
import itertools
import signal
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch.utils import data

from dsat._determined.experiment import Batch, Epoch, seed
from dsat._meter import number_of

__all__ = ["Batch", "Epoch"]

TorchData = Any  # A batch: tensors, in lists and mappings.
Metrics = Dict[str, Any]


class _Shuffled(data.RandomSampler):
    """All indices in an order that depends on the seed and the epoch alone (ShardedBatches)."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, generator=torch.Generator())


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
        for epoch in itertools.count(first // length) if self._repeat else [0]:
            sampler = getattr(self.batch_sampler, "sampler", None)
            if isinstance(sampler, _Shuffled):
                sampler.generator.manual_seed(seed() + epoch)
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
                 timeout: float = 0, worker_init_fn: Any = None, **arguments: Any) -> None:
        """As PyTorch's loader. Raises TypeError for a data set without a length."""
        if not hasattr(dataset, "__len__"):
            raise TypeError("dsat: a data set without a length cannot be sharded; return PyTorch's "
                            "DataLoader, and call disable_dataset_reproducibility_checks()")
        sampler = sampler or (_Shuffled if shuffle else data.SequentialSampler)(dataset)
        self.dataset, self.batch_size = dataset, batch_size
        self.batch_sampler = batch_sampler or data.BatchSampler(sampler, batch_size or 1, drop_last)
        self._arguments = {
            "num_workers": num_workers, "collate_fn": collate_fn, "pin_memory": pin_memory,
            "timeout": timeout, "worker_init_fn": functools.partial(_init_worker, worker_init_fn),
            **arguments}

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
    try:
        return len(getattr(loader, "loader", loader))
    except TypeError:
        return None


class MetricReducer:
    """A metric of all ranks: reset(), per_slot_reduce(), cross_slot_reduce(list of all ranks')."""


class _Function(MetricReducer):
    """A function of all values, in the order in which one rank would have seen them."""

    def __init__(self, function: Callable[[List[Any]], Any]) -> None:
        self._function = function
        self.reset()

    def reset(self) -> None:
        self._values: List[Any] = []

    def update(self, value: Any) -> None:
        self._values.append(value)

    def per_slot_reduce(self) -> List[Any]:
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: List[Any]) -> Any:
        end = object()
        rows = itertools.zip_longest(*per_slot_metrics, fillvalue=end)
        return self._function([value for row in rows for value in row if value is not end])


class Reducers(List[Tuple[Any, Optional[str], bool, bool]]):
    """The reducers of a trial, with the arguments of wrap()."""

    def wrap(self, reducer: Any, name: Optional[str] = None, for_training: bool = True,
             for_validation: bool = True) -> Any:
        """Registers a function of a list of values, or a MetricReducer, and returns the latter."""
        if not isinstance(reducer, MetricReducer):
            reducer = _Function(reducer)
        self.append((reducer, name, for_training, for_validation))
        return reducer

    def reduce(self, training: bool, allgather: Callable[[Any], List[Any]]) -> Metrics:
        """The metrics over all ranks, which call it together."""
        chosen = [(reducer, name) for reducer, name, for_training, for_validation in self
                  if (for_training if training else for_validation)]
        gathered = allgather([each.per_slot_reduce() for each, _ in chosen]) if chosen else []
        result: Metrics = {}
        for number, (reducer, name) in enumerate(chosen):
            value = reducer.cross_slot_reduce([values[number] for values in gathered])
            if isinstance(value, dict) != (name is None):
                raise TypeError(f"dsat: the reducer {name or type(reducer).__name__} returned "
                                f"{value!r}; expected a dictionary without name=, else a number")
            result.update(value if name is None else {name: value})
        return result


_left_out: Set[str] = set()


def _is_scalar(value: Any) -> bool:
    if hasattr(value, "numel"):  # A tensor, whose value would have to be waited for.
        return bool(value.numel() == 1)
    return not isinstance(value, str) and number_of(value) is not None


def scalars(returned: Any, method: str) -> Metrics:
    """The metrics that a method returned, detached. Raises TypeError if it returned none.

    Those of a mapping that are no scalars are left out, which is said once.
    """
    returned = {"loss": returned} if _is_scalar(returned) else returned
    if not isinstance(returned, dict):
        raise TypeError(f"dsat: {method}() returned {returned!r}; expected a scalar, the loss, or a "
                        "dictionary from names to scalars")
    for name in {name for name, value in returned.items() if not _is_scalar(value)} - _left_out:
        _left_out.add(name)
        print(f"dsat: the metric {name!r} of {method}() is left out, because it is no scalar",
              file=sys.stderr)
    return {name: value.detach() if hasattr(value, "detach") else value
            for name, value in returned.items() if _is_scalar(value)}


def mean(of: List[Metrics]) -> Metrics:
    """The mean of each metric, over those that have it."""
    values = {name: [number_of(metrics[name]) or 0.0 for metrics in of if name in metrics]
              for metrics in of for name in metrics}
    return {name: sum(each) / len(each) for name, each in values.items()}


class PyTorchCallback:
    """The base of callbacks, of which a class defines the methods on_... that it needs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *arguments, **keywords: None
        raise AttributeError(name)

    def state_dict(self) -> Dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes what state_dict() returned when a checkpoint was saved."""
