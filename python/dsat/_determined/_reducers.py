"""Metrics of training and validation: what a class returns, and what its reducers make of all."""
from __future__ import annotations

import itertools
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from dsat._meter import number_of

Metrics = Dict[str, Any]


class MetricReducer:
    """A metric of all ranks: reset(), per_slot_reduce(), cross_slot_reduce(list of all ranks')."""

    def reset(self) -> None:
        raise NotImplementedError

    def per_slot_reduce(self) -> Any:
        raise NotImplementedError

    def cross_slot_reduce(self, per_slot_metrics: List[Any]) -> Any:
        raise NotImplementedError


class _Function(MetricReducer):
    """A function of all values, in the order in which one rank would have seen them."""

    def __init__(self, function: Callable[[List[Any]], Any]) -> None:
        self._function = function
        self._values: List[Any] = []

    def update(self, value: Any) -> None:
        self._values.append(value)

    def reset(self) -> None:
        self._values = []

    def per_slot_reduce(self) -> List[Any]:
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: List[Any]) -> Any:
        end = object()
        rows = itertools.zip_longest(*per_slot_metrics, fillvalue=end)
        return self._function([value for row in rows for value in row if value is not end])


class _Wrapped(NamedTuple):
    reducer: MetricReducer
    name: Optional[str]
    for_training: bool
    for_validation: bool


class Reducers:
    """The reducers of a trial."""

    def __init__(self) -> None:
        self._all: List[_Wrapped] = []

    def wrap(self, reducer: Any, name: Optional[str], for_training: bool,
             for_validation: bool) -> MetricReducer:
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer):
                raise TypeError(f"dsat: wrap_reducer() got {reducer!r}; expected a function or a "
                                "MetricReducer")
            reducer = _Function(reducer)
        self._all.append(_Wrapped(reducer, name, for_training, for_validation))
        return reducer

    def reset(self) -> None:
        for each in self._all:
            each.reducer.reset()

    def reduce(self, training: bool, allgather: Callable[[Any], List[Any]]) -> Metrics:
        """The metrics over all ranks, which call it together."""
        chosen = [each for each in self._all
                  if (each.for_training if training else each.for_validation)]
        if not chosen:
            return {}
        gathered = allgather([each.reducer.per_slot_reduce() for each in chosen])
        result: Metrics = {}
        for number, each in enumerate(chosen):
            value = each.reducer.cross_slot_reduce([values[number] for values in gathered])
            if isinstance(value, dict) != (each.name is None):
                raise TypeError(
                    f"dsat: the reducer {each.name or type(each.reducer).__name__} returned "
                    f"{value!r}; expected a dictionary without name=, and a number with it")
            result.update(value if each.name is None else {each.name: value})
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
    if _is_scalar(returned):
        returned = {"loss": returned}
    if not isinstance(returned, dict):
        raise TypeError(f"dsat: {method}() returned {returned!r}; expected a scalar, the loss, or a "
                        "dictionary from names to scalars")
    metrics = {}
    for name, value in returned.items():
        if _is_scalar(value):
            metrics[name] = value.detach() if hasattr(value, "detach") else value
        elif name not in _left_out:
            _left_out.add(name)
            print(f"dsat: the metric {name!r} of {method}() is left out, because it is no scalar",
                  file=sys.stderr)
    return metrics


def mean(of: List[Metrics]) -> Metrics:
    """The mean of each metric, over those that have it."""
    names = {name: None for metrics in of for name in metrics}
    values = {name: [number_of(metrics[name]) for metrics in of if name in metrics]
              for name in names}
    return {name: sum(v for v in each if v is not None) / len(each)
            for name, each in values.items()}
