"""How many steps are measured, and which of them count."""
import random

from conftest import ROOT
from dsat import _window
from dsat._window import StepWindow, first_counted, further_steps


def test_equal_steps_are_enough_once_they_have_taken_half_a_second():
    assert further_steps([0.3, 0.3], least=2) == 0
    assert further_steps([0.1, 0.1], least=2) == 2
    assert further_steps([0.1] * 4, least=2) == 4
    assert further_steps([0.1] * 8, least=2) == 0
    assert further_steps([1e-3] * 16, least=2) == 14
    assert further_steps([1e-3] * 30, least=2) == 0


def test_steps_that_vary_are_measured_four_times_as_often():
    assert further_steps([1.0, 1.2], least=2) == 2
    assert further_steps([1.0, 1.2, 1.0, 1.2], least=2) == 4
    assert further_steps([1.0, 1.2] * 4, least=2) == 0
    assert further_steps([1.0, 1.2, 1.4], least=3) == 3
    assert further_steps([1.0], least=1) == 1  # The error of one step is not known.


def test_the_error_that_ends_the_measuring_is_that_of_the_rate():
    rng = random.Random(1)
    errors = []
    for _ in range(300):
        window = StepWindow(4, 5, fixed=False)
        window.seconds = [rng.gauss(1, 0.01), rng.gauss(1, 0.01)]
        while window.goes_on():
            while len(window.seconds) < window.last - 3:
                window.seconds.append(rng.gauss(1, 0.01))
        assert len(window.seconds) <= 8
        errors.append(abs(sum(window.counted) / len(window.counted) - 1))
    assert sorted(errors)[285] < 0.02


def test_steps_of_the_warm_up_do_not_count():
    assert first_counted([3, 2, 1, 1.01, 1], least=2) == 2
    assert first_counted([1, 1.01, 3, 1, 1], least=2) == 0
    assert first_counted([3, 2, 1], least=3) == 0
    window = StepWindow(4, 7, fixed=False)
    window.seconds = [2, 1, 1, 1, 1]
    assert (window.first_counted, window.counted) == (5, [1, 1, 1, 1])
    window = StepWindow(4, 7, fixed=True)
    window.seconds = [2, 1, 1, 1]
    assert (window.first_counted, window.counted) == (4, [2, 1, 1, 1])
    assert not window.goes_on()


def test_ranks_that_cannot_agree_measure_as_many_steps_as_they_were_told(monkeypatch):
    monkeypatch.setattr(_window.sys, "modules", {})
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert _window.agreed(3) == 3
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert _window.agreed(3) == 0


def test_the_rule_is_that_of_the_engine():
    header = "".join((ROOT / file).read_text()
                     for file in ("engine/worker/step_window.h", "proto/measuring.h"))
    for line in (f"kTargetError = {_window.TARGET_ERROR};",
                 f"kMostTimesLeast = {_window.MOST_TIMES_LEAST};",
                 f"kShortSteps = {_window.SHORT_STEPS};",
                 f"kPreciseMs = {1e3 * _window.PRECISE_S:.0f};",
                 f"kShortMs = {1e3 * _window.SHORT_S:.0f};"):
        assert line in header
