"""What the meter asks of a GPU, which a fake torch stands for."""
import sys
import types

import pytest
from dsat import _meter


@pytest.fixture
def cuda(monkeypatch):
    """A rank that uses GPU 1 of 3 without making it the current one."""
    monkeypatch.setattr(_meter, "_used_gpus", [])
    waited = []
    cuda = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, device_count=lambda: 3,
        current_device=lambda: 0, synchronize=waited.append, waited=waited,
        memory_reserved=lambda gpu: 4096 if gpu == 1 else 0,
        max_memory_allocated=lambda gpu: 1000 * gpu,
        memory_allocated=lambda gpu: 10 * gpu,
        memory_stats=lambda gpu: {"num_alloc_retries": gpu})
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    return cuda


def test_the_gpu_that_a_rank_uses_counts(cuda):
    _meter.synchronize()
    assert cuda.waited == [1]
    peak = _meter.peak_memory()
    assert (peak["peak_bytes"], peak["num_alloc_retries"]) == (1000, 1)
    assert _meter.memory_in_use() == 10


def test_without_memory_the_current_gpu_counts(cuda):
    cuda.memory_reserved = lambda gpu: 0
    _meter.synchronize()
    assert cuda.waited == [0]
    assert _meter.peak_memory()["peak_bytes"] == 0
