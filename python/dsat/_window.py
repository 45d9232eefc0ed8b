"""Decides how many optimizer steps are measured, by the rule of engine/worker/step_window.h."""
from __future__ import annotations

import math
import statistics
import sys
from typing import List, Sequence

from dsat._trial import world_size

# The measuring ends when the standard error is this part of the rate or less, at the latest after
# so many times the least number of steps.
TARGET_ERROR = 0.02
MOST_TIMES_LEAST = 4
# Short steps cost little: up to this many are measured, until they take so long together.
SHORT_STEPS = 30
PRECISE_S = 0.5
SHORT_S = 1.0
# A step of the warm-up exceeds the median of later ones by this part, and by so many spreads.
SLOWER_PART = 0.03
SLOWER_SPREADS = 5.0


def _median_and_spread(values: Sequence[float]) -> "tuple[float, float]":
    """The median, and half of the interquartile range, of two values or more."""
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return median, (third - first) / 2


def _relative_error(seconds: Sequence[float]) -> float:
    """The standard error of the rate of steps as a part of it, as StandardError in proto/trial.h."""
    n = len(seconds)
    if n < 2:
        return math.inf
    rate, spread = _median_and_spread([1 / max(s, 1e-9) for s in seconds])
    return 1.2533 / 0.6745 * (n + 2) / (n - 1) * spread / math.sqrt(n) / rate


def first_counted(seconds: Sequence[float], least: int) -> int:
    """The index of the first step that is no warm-up, so that `least` steps count at least."""
    first = 0
    while len(seconds) - first > max(least, 2):
        median, spread = _median_and_spread(seconds[first + 1:])
        if seconds[first] - median <= max(SLOWER_PART * median, SLOWER_SPREADS * spread):
            break
        first += 1
    return first


def further_steps(seconds: Sequence[float], least: int) -> int:
    """How many steps are to be measured after those that took `seconds`; 0 if they are enough.

    Args:
        seconds: the durations of all steps since the measuring has begun, at least `least`.
        least: steps that count at least.
    """
    n, most = len(seconds), MOST_TIMES_LEAST * least
    precise = _relative_error(seconds[first_counted(seconds, least):]) <= TARGET_ERROR
    # Ranks agree on each answer, which takes a moment: therefore the number doubles.
    if n < SHORT_STEPS and sum(seconds) < (PRECISE_S if precise else SHORT_S):
        return min(n, SHORT_STEPS - n)
    return 0 if precise or n >= most else min(n, most - n)


def agreed(steps: int) -> int:
    """Returns rank 0's number on all ranks, which call it after the same step.

    0 if the ranks cannot exchange it, because torch.distributed is not initialized or its backend
    is not known.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return steps if world_size() == 1 else 0
    if distributed.get_world_size() == 1:
        return steps
    devices = {"nccl": "cuda", "gloo": "cpu", "mpi": "cpu", "ccl": "cpu"}
    device = devices.get(str(distributed.get_backend()))
    if device is None:
        return 0
    number = sys.modules["torch"].tensor([steps], dtype=int, device=device)
    distributed.broadcast(number, src=0)
    return int(number.item())


class StepWindow:
    """The steps that one rank measures. All ranks measure the same ones."""

    def __init__(self, first: int, last: int, fixed: bool) -> None:
        """Measures the steps `first` to `last`, counted from 0, and more if they are not enough.

        If `fixed`, exactly these count.
        """
        self.last = last
        self._first = first
        self._fixed = fixed
        self._least = last + 1 - first
        self.seconds: List[float] = []

    @property
    def first_counted(self) -> int:
        """The first step that counts, from 0; all steps after it count, too."""
        return self._first + (0 if self._fixed else first_counted(self.seconds, self._least))

    @property
    def counted(self) -> List[float]:
        """The durations of the steps that count."""
        return self.seconds[self.first_counted - self._first:]

    def goes_on(self) -> bool:
        """Whether further steps are measured after the last one. Ranks decide it together."""
        if self._fixed:
            return False
        more = agreed(further_steps(self.seconds, self._least))
        self.last += more
        return more > 0
