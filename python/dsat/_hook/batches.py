"""Gives data loaders that scripts have built the micro-batch size of the trial."""
from __future__ import annotations

from typing import Any, Mapping, Optional

from dsat._hook import wrap


class UnreachableError(RuntimeError):
    """The script decides about a setting where dsat cannot change it."""


WAY_OUT = ("build the DataLoader with dsat.get_ds_config(config)"
           "[\"train_micro_batch_size_per_gpu\"], or read the config file from "
           "os.environ[\"DSAT_DS_CONFIG\"] where it is set")


def rebatch(loader: Any, micro_batch: int) -> None:
    """Changes the batch size of a torch DataLoader. Raises UnreachableError if it has none."""
    if getattr(loader, "batch_size", micro_batch) == micro_batch:
        return
    sampler = getattr(loader, "batch_sampler", None)
    inner = sampler
    while inner is not None and not isinstance(getattr(inner, "batch_size", None), int):
        inner = getattr(inner, "batch_sampler", None) or getattr(inner, "_batch_sampler", None)
    if loader.batch_size is None or inner is None:
        raise UnreachableError(
            f"dsat: the trial has micro-batches of {micro_batch} samples, but the data loader's "
            f"{type(sampler).__name__} decides about the batches: {WAY_OUT}")
    inner.batch_size = micro_batch
    loader.__dict__["batch_size"] = micro_batch  # Its own __setattr__ refuses.


_watched: Optional[int] = None


def rebatch_loaders_of(script_micro_batch: int, micro_batch: int) -> None:
    """From now on, loaders with the script's micro-batch size yield the trial's when iterated."""
    global _watched
    first = _watched is None
    _watched = script_micro_batch
    if not first:
        return
    from torch.utils.data import DataLoader

    @wrap(DataLoader, "__iter__")
    def _iter(original: Any, self: Any) -> Any:
        if self.batch_size == _watched:
            rebatch(self, micro_batch)
        return original(self)


def samples_in(args: Any, kwargs: Any, micro_batch: int) -> Optional[int]:
    """The samples in the arguments of a forward pass, judged by its tensors; None if they hide it.

    A tensor with a dimension of `micro_batch` has that many; otherwise the first dimension of the
    first tensor counts. Packed sequences, whose first dimension is 1, hide their number.
    """
    stack = [*args, *kwargs.values()]
    first: Optional[int] = None
    while stack:
        value = stack.pop(0)
        shape = getattr(value, "shape", None)
        if shape is not None:
            if micro_batch in tuple(shape):
                return micro_batch
            if first is None and len(shape) > 0:
                first = int(shape[0])
        elif isinstance(value, (list, tuple)):
            stack[:0] = value
        elif isinstance(value, Mapping):
            stack[:0] = list(value.values())
    return None if first == 1 else first
