"""Batch sizes of data loaders and of forward passes."""
import types

import pytest

torch = pytest.importorskip("torch")

from dsat._hook.batches import (BatchCounter, UnreachableError, check_accumulation,  # noqa: E402
                                rebatch)
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler  # noqa: E402


class Shard:
    """A batch sampler around another one, as trainers build them."""

    def __init__(self, batch_sampler):
        self.batch_sampler = batch_sampler

    def __iter__(self):
        return iter(self.batch_sampler)


def test_a_loader_yields_batches_of_the_trial():
    loader = DataLoader(range(12), batch_size=2)
    rebatch(loader, 4)
    assert [len(batch) for batch in loader] == [4, 4, 4]
    assert (len(loader), loader.batch_size) == (3, 4)


def test_a_sampler_of_batches_inside_of_another_is_found():
    loader = DataLoader(range(12), batch_size=2)
    loader.__dict__["batch_sampler"] = Shard(loader.batch_sampler)
    rebatch(loader, 6)
    assert [len(batch) for batch in loader] == [6, 6]


def test_a_loader_without_a_whole_batch_is_refused():
    with pytest.raises(UnreachableError, match="has no whole micro-batch of 4 samples"):
        rebatch(DataLoader(range(3), batch_size=2, drop_last=True), 4)
    rebatch(DataLoader(range(3), batch_size=2), 4)


def test_a_loader_without_a_batch_size_is_refused_with_the_way_out():
    sampler = BatchSampler(SequentialSampler(range(4)), 2, drop_last=False)
    with pytest.raises(UnreachableError, match="BatchSampler decides .* dsat.get_ds_config"):
        rebatch(DataLoader(range(4), batch_sampler=sampler), 4)


@pytest.mark.parametrize("arguments, samples", [
    (((torch.zeros(3, 7),), {}), 3),
    (((), {"ids": torch.zeros(3, 7), "labels": torch.zeros(3)}), 3),
    (((torch.zeros(7, 4),), {}), 4),          # The second dimension is the batch.
    ((({"ids": torch.zeros(4, 7)},), {}), 4),
    (((torch.zeros(1, 90),), {}), None),      # Packed sequences.
    (((torch.tensor(1.0), "text"), {}), None),
])
def test_samples_of_a_forward_pass(arguments, samples):
    assert BatchCounter(4).count(*arguments) == samples


def counts(*shapes, micro_batch=4, script_micro_batch=None):
    """The samples of forward passes with one or more tensors of these shapes."""
    counter = BatchCounter(micro_batch, script_micro_batch)
    return [counter.count([torch.zeros(shape) for shape in passed], {}) for passed in shapes]


def test_a_partial_batch_is_seen_in_the_dimension_that_full_ones_have_shown():
    assert counts([(4, 7)], [(3, 7)]) == [4, 3]
    assert counts([(7, 4)], [(7, 3)], [(9, 4)]) == [4, 3, 4]  # The sequence comes first.
    assert counts([(4, 4)], [(3, 4)]) == [4, 3]               # Sequences as long as the batch.
    assert counts([(4, 4)], [(9, 4)], [(2, 4)], [(2, 3)]) == [4, 4, 4, 3]
    assert counts([(4, 4), (4,)], [(4, 3), (3,)]) == [4, 3]   # The labels decide.


def images(count):
    """A batch as torchvision's models for detection get it, in a tuple."""
    targets = [{"boxes": torch.zeros(8 - i % 2, 4), "labels": torch.zeros(8 - i % 2)}
               for i in range(count)]
    return [([torch.zeros(3, 20 + i, 30) for i in range(count)], targets)]


def test_a_list_has_a_tensor_for_each_sample():
    counter = BatchCounter(8)
    assert [counter.count(images(count), {}) for count in (8, 5, 8)] == [8, 5, 8]
    assert BatchCounter(8).count([[torch.zeros(3, 20, 30)] * 8], {}) == 8
    assert BatchCounter(8).count([list(zip(*images(8)[0]))], {}) == 8
    counter = BatchCounter(2)
    assert [counter.count(images(count), {}) for count in (2, 1)] == [2, 1]
    assert BatchCounter(8).count([images(5)[0][:1]], {}) is None  # The channels are no samples.


def test_a_list_of_batches_is_no_list_of_samples():
    counter = BatchCounter(2)
    assert [counter.count([[torch.zeros(size, 7), torch.zeros(size, 7)]], {})
            for size in (2, 1)] == [2, 1]
    views = [[torch.zeros(8, 3, 5), torch.zeros(8, 3, 5)], torch.zeros(8)]
    assert BatchCounter(8).count([views], {}) == 8
    assert BatchCounter(8).count([[torch.zeros(4, 7), torch.zeros(4)]], {}) == 4


def test_a_batch_of_the_scripts_own_size_is_seen_behind_the_sequence():
    assert counts([(7, 2)], script_micro_batch=2) == [2]


def test_accumulation_of_the_script_alone_is_refused():
    def refused(own, config, submitted=1, is_profile=True):
        running = types.SimpleNamespace(config=config, submitted_accumulation=submitted,
                                        is_profile=is_profile)
        try:
            check_accumulation(own, running)
        except UnreachableError as error:
            assert "{gradient_accumulation_steps: 4}" in str(error)
            return True
        return False

    assert refused(4, {"gradient_accumulation_steps": 1})
    assert not refused(1, {"gradient_accumulation_steps": 1})
    assert not refused("auto", {"gradient_accumulation_steps": 1})
    assert not refused(4, {"gradient_accumulation_steps": 1}, submitted=2)
    assert not refused(4, {"gradient_accumulation_steps": "auto"})
    assert not refused(4, {"train_batch_size": 16, "gradient_accumulation_steps": 4})
    assert not refused(4, {"gradient_accumulation_steps": 1}, is_profile=False)
