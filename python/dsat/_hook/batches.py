"""Gives data loaders that scripts have built the micro-batch size of the trial."""
from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from dsat._hook import wrap
from dsat._trial import Trial, note_change


class UnreachableError(RuntimeError):
    """The script decides about a setting where dsat cannot change it."""


WAY_OUT = ("build the DataLoader with dsat.get_ds_config(config)"
           "[\"train_micro_batch_size_per_gpu\"], or read the config file from "
           "os.environ[\"DSAT_DS_CONFIG\"] where it is set")


def rebatch(loader: Any, micro_batch: int) -> None:
    """Changes the batch size of a torch DataLoader.

    Raises UnreachableError if it has no batch size, or no batch of this one.
    """
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
    with contextlib.suppress(TypeError):  # Not all data have a length.
        if len(sampler) == 0:
            raise UnreachableError(f"dsat: the data loader has no whole micro-batch of {micro_batch} "
                                   "samples")


def check_accumulation(own: Any, running: Trial,
                       name: str = "gradient_accumulation_steps of its config") -> None:
    """Raises UnreachableError if the script accumulates `own` steps and the experiment does not.

    Every trial would train without it, also the one with the submitted configuration.
    """
    key, config = "gradient_accumulation_steps", running.config
    is_free = config.get(key) == "auto" or isinstance(config.get("train_batch_size"), int)
    if not running.is_profile or is_free or running.submitted_accumulation != 1:
        return
    if isinstance(own, int) and own > 1:
        raise UnreachableError(
            f"dsat: the script sets {name} to {own}, and the experiment's config does not "
            f"accumulate: set overwrite_deepspeed_args: {{{key}: {own}}} in the experiment file's "
            "hyperparameters")


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


Shape = Tuple[int, ...]
# The number of a tensor among the arguments, and a dimension of it; a list has a number below 0.
Place = Tuple[int, int]


class BatchCounter:
    """Counts the samples of forward passes, whichever dimension of the tensors is the batch.

    The places of the batch are those that have had `micro_batch` samples and never more. A list may
    be one, too, which has a tensor for each sample, as images of different sizes. If several are
    left, as where sequences happen to be as long, a list decides, then a tensor of one dimension,
    and else the first dimension.
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
        tensors = _Tensors([*args, *kwargs.values()])
        sizes = {(number, dimension): size for number, shape in enumerate(tensors.shapes)
                 for dimension, size in enumerate(shape)}
        fits = {place for place, size in sizes.items() if size == self.micro_batch}
        for number, (length, shapes) in enumerate(tensors.lists):
            place = (-1 - number, 0)
            sizes[place] = length
            if length == self.micro_batch and all(shape[:1] != (length,) for shape in shapes):
                fits.add(place)
        if self._places is None:
            if not fits:
                return self._count_others(tensors)
            self._places = sorted(fits)
        fitting = [place for place in self._places if sizes.get(place, 0) <= self.micro_batch]
        self._places = fitting or self._places
        here = [place for place in self._places if place in sizes]
        if not here:
            return None
        return sizes[min(here, key=lambda place: (
            1 if place[0] < 0 else len(tensors.shapes[place[0]]), place[1], place[0] >= 0,
            abs(place[0])))]

    def _count_others(self, tensors: "_Tensors") -> Optional[int]:
        first = next((shape for shape in tensors.shapes if shape), None)
        if first is None or tensors.are_deep:
            return None
        samples = self._of_script if self._of_script in first else first[0]
        return None if samples == 1 else samples


class _Tensors:
    """The shapes of all tensors in the arguments, in order, and the lists that have tensors."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.shapes: List[Shape] = []
        self.lists: List[Tuple[int, List[Shape]]] = []  # The inner ones first.
        self.are_deep = False  # The first tensor is in a list of a list, and may be one sample.
        self._add(values, 0)

    def _add(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            shape = getattr(value, "shape", None)
            if shape is not None:
                self.are_deep |= not self.shapes and depth > 1
                self.shapes.append(tuple(map(int, shape)))
            elif isinstance(value, Mapping):
                self._add(value.values(), depth)
            elif isinstance(value, (list, tuple)):
                before = len(self.shapes)
                self._add(value, depth + 1)
                if len(self.shapes) > before:
                    self.lists.append((len(value), self.shapes[before:]))
