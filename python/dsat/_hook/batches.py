"""Gives data loaders that scripts have built the micro-batch size of the trial."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

from dsat._hook import wrap
from dsat._trial import note_change


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
    note_change()
    inner.batch_size = micro_batch
    loader.__dict__["batch_size"] = micro_batch  # Its own __setattr__ refuses.


_watched: Set[int] = set()


def rebatch_loaders_of(script_micro_batch: int, micro_batch: int) -> None:
    """From now on, loaders with the script's micro-batch size yield the trial's when iterated."""
    is_wrapped = bool(_watched)
    _watched.add(script_micro_batch)
    if is_wrapped:
        return
    from torch.utils.data import DataLoader

    @wrap(DataLoader, "__iter__")
    def _iter(original: Any, self: Any) -> Any:
        if self.batch_size in _watched:
            rebatch(self, micro_batch)
        return original(self)


Place = Tuple[int, int]  # The number of a tensor among the arguments, and a dimension of it.


class BatchCounter:
    """Counts the samples of forward passes, whichever dimension of the tensors is the batch.

    The places of the batch are those that have had `micro_batch` samples and never more. If several
    are left, as where sequences happen to be as long, a tensor of one dimension decides, and else
    the first dimension.
    """

    def __init__(self, micro_batch: int, script_micro_batch: Optional[int] = None) -> None:
        self.micro_batch = micro_batch
        self._of_script = script_micro_batch
        self._places: Optional[List[Place]] = None
        self._seen: Set[int] = set()
        self._partial_steps: List[int] = []

    def note(self, args: Any, kwargs: Any, step: int) -> bool:
        """Counts a forward pass of a step. False: the script feeds batches of its own size."""
        samples = self.count(args, kwargs)
        if samples is None:
            return True
        if samples == self._of_script and not self._seen:
            return False
        self._seen.add(samples)
        if samples < self.micro_batch and step not in self._partial_steps:
            self._partial_steps.append(step)
        return True

    def report(self) -> Dict[str, Any]:
        """What the rank's file says of all steps."""
        return {"forward_batch_sizes": sorted(self._seen), "partial_steps": self._partial_steps}

    def count(self, args: Any, kwargs: Any) -> Optional[int]:
        """The samples in the arguments; None if they hide it, as packed sequences do."""
        shapes = _shapes_in([*args, *kwargs.values()])
        sizes = {(number, dimension): size for number, shape in enumerate(shapes)
                 for dimension, size in enumerate(shape)}
        if self._places is None:
            self._places = [place for place, size in sizes.items() if size == self.micro_batch]
            if not self._places:
                self._places = None
                return self._count_others(shapes)
        fitting = [place for place in self._places if sizes.get(place, 0) <= self.micro_batch]
        self._places = fitting or self._places
        here = [place for place in self._places if place in sizes]
        if not here:
            return None
        return sizes[min(here, key=lambda place: (len(shapes[place[0]]), place[1], place[0]))]

    def _count_others(self, shapes: List[Tuple[int, ...]]) -> Optional[int]:
        first = next((shape for shape in shapes if shape), None)
        if first is None:
            return None
        samples = self._of_script if self._of_script in first else first[0]
        return None if samples == 1 else samples


def _shapes_in(stack: List[Any]) -> List[Tuple[int, ...]]:
    """The shapes of all tensors in the arguments, in order."""
    shapes = []
    while stack:
        value = stack.pop(0)
        shape = getattr(value, "shape", None)
        if shape is not None:
            shapes.append(tuple(map(int, shape)))
        elif isinstance(value, (list, tuple)):
            stack[:0] = value
        elif isinstance(value, Mapping):
            stack[:0] = list(value.values())
    return shapes
