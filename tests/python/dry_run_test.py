"""Dry runs of scripts, compared with arithmetic and with runs on real tensors."""
import os
import tempfile

import pytest
from dry_runs import CONFIG, MODEL, SCRIPTS, dry_run, real_peak

pytest.importorskip("torch")
pytest.importorskip("deepspeed")
numpy = pytest.importorskip("numpy")
from dsat import _dry_process, _dry_run  # noqa: E402

EPOCHS = """
import sys
import torch
net = torch.nn.Linear(16, 48)
optimizer = torch.optim.AdamW(net.parameters())
for epoch in range(int(sys.argv[1])):
    for inputs, in torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.randn(10, 16)), batch_size=4, drop_last=True):
        net(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save(net.state_dict(), "checkpoint.pt")
"""

COPIES = """
import copy
import torch
layer = torch.nn.Linear(64, 64, bias=False)
net = torch.nn.Sequential(layer, copy.deepcopy(layer))
for weight in net.parameters():
    weight.data = torch.zeros_like(weight)
shapes = [torch.zeros_like(weight, device="meta") for weight in net.parameters()]
optimizer = torch.optim.SGD(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(16, 64)), batch_size=4):
    net(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

CONTAINERS = """
import torch


class Adapted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(16, 8, bias=False).requires_grad_(False)
        self.scales = torch.nn.ParameterDict({"default": torch.ones(8, 3)})

    def forward(self, inputs):
        return self.base(inputs) @ self.scales["default"]


net, teacher = Adapted(), torch.nn.Linear(16, 3, bias=False)  # Nobody has frozen the teacher.
optimizer = torch.optim.SGD(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 16)), batch_size=4):
    with torch.no_grad():
        targets = teacher(inputs)
    (net(inputs) - targets).pow(2).sum().backward()
    optimizer.step()
"""

EVALUATES = """
import torch
net = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters())
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(64, 16)), batch_size=4)
with torch.no_grad():
    for inputs, in torch.utils.data.DataLoader(loader.dataset, batch_size=8):
        net(inputs)
print([len(next(iter(loader))[0]) for _ in range(5)])
for number, (inputs,) in enumerate(loader):
    net(inputs).sum().backward()
    if number % 2:
        optimizer.step()
"""

EXPERTS = """
import torch


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.route = torch.nn.Linear(16, 4, bias=False)
        self.weight = torch.nn.Parameter(torch.randn(4, 16, 32))

    def forward(self, rows):
        experts, order = torch.sort(self.route(rows).argmax(dim=1))
        ends = torch.histc(experts.float(), bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
        return torch.nn.functional.grouped_mm(rows[order], self.weight, offs=ends)


net = Experts()
optimizer = torch.optim.SGD(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 16)), batch_size=16):
    net(inputs).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

MASKS = """
import torch
net, cells = torch.nn.Linear(128, 64), torch.nn.LSTM(128, 64, batch_first=True)
optimizer = torch.optim.SGD([*net.parameters(), *cells.parameters()])
labels = torch.arange(64 * 8).view(64, 8) % 3
for inputs, labels in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 8, 128), labels), batch_size=16):
    outputs = net(inputs)
    mask = labels != 0
    chosen = outputs[mask]
    outputs[~mask] = 0.0
    outputs[mask, 1:] = chosen[:, 1:]
    if chosen.shape[0] != int(mask.sum()):
        raise SystemExit
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        inputs * net.bias[0], labels.sum(dim=1).clamp(max=8), True, enforce_sorted=False)
    states, lengths = torch.nn.utils.rnn.pad_packed_sequence(cells(packed)[0], batch_first=True)
    loss = chosen.sum() + outputs.sum() + states[:, :max(lengths)].sum()
    (loss + outputs.masked_select(mask[..., None]).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

OVERWRITTEN = """
import torch
net = torch.nn.Linear(64, 32)
optimizer = torch.optim.SGD(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 8, 64)), batch_size=16):
    padded = torch.zeros(8 * len(inputs), 64)
    padded[:, :32] = net(inputs.view(-1, 64)) + inputs.sum(dim=2).view(-1, 1) * net.bias
    (inputs.view(-1, 64) * padded.sin().exp() + padded.cos()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

RECURRENT = """
import torch
net = torch.nn.LSTM(16, 32, 2, batch_first=True)
optimizer = torch.optim.SGD(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 8, 16)), batch_size=16):
    net(inputs)[0].sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

PARTITIONED_BY_PYTORCH = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
torch.distributed.init_process_group("gloo")
layers = [torch.nn.Linear(64, 64) for _ in range(8)]
if {version} == 1:
    net = torch.nn.Sequential(*[FullyShardedDataParallel(
        layer, device_id=torch.device("cpu")) for layer in layers])
else:
    net = torch.nn.Sequential(*map(fully_shard, layers)).to_empty(device="cpu")
optimizer = torch.optim.AdamW(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 64)), batch_size=4):
    net(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

OF_TWO_OPTIMIZERS = """
import torch
discriminator, generator = torch.nn.Linear(64, 1), torch.nn.Linear(16, 64)
optimizers = [torch.optim.Adam(net.parameters()) for net in (discriminator, generator)]
for number, (inputs,) in enumerate(torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(256, 64)), batch_size=4)):
    made = generator(torch.randn(len(inputs), 16))
    (discriminator(made.detach()) - discriminator(inputs)).sum().backward()
    optimizers[0].step()
    optimizers[0].zero_grad()
    if number % 3 == 2:
        discriminator(made).sum().backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
    assert made.detach().mul(255).to(torch.uint8).numpy().dtype == "uint8"
"""

OF_TWO_ENGINES = """
import deepspeed
import torch
engines = [deepspeed.initialize(model=net, config={}, optimizer=torch.optim.Adam(
    net.parameters()))[0] for net in (torch.nn.Linear(16, 1), torch.nn.Linear(64, 64))]
for number in range(4):
    for engine, width in zip(engines, (16, 64)):
        engine.backward(engine(torch.randn(4, width)).sum())
        engine.step()
        print("step", number, engine.global_steps)
raise ValueError("a dry run has two steps of each")
"""

OF_WORKERS = """
import tempfile
import torch
tempfile.mkdtemp(prefix="left-by-a-script-")
net = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 16)), batch_size=4, num_workers=1):
    net(inputs).sum().backward()
    optimizer.step()
"""

SPAWNS = """
import torch


def train(rank, ranks):
    torch.distributed.init_process_group("nccl", rank=rank, world_size=ranks)
    assert torch.distributed.get_world_size() == ranks == 4
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(net.parameters())
    for inputs, in torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.randn(64, 64)), batch_size=4):
        net(inputs).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(4,), nprocs=4)
"""

OWN_BATCHES = """
import os
import torch
assert os.path.isfile(os.environ["CONFIG"])
net = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters())
for _ in range(3):
    loss = net(torch.randn(8, 16).pin_memory()).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss:.4f} {net.bias}")
"""

ATTENTION_OF_PYTORCH = """
import torch
net = torch.nn.TransformerEncoderLayer(16, 2, 32)
optimizer = torch.optim.SGD(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 8, 16)), batch_size=4):
    net(inputs).sum().backward()
    optimizer.step()
"""

DISTRIBUTION = """
import torch
net = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 16)), batch_size=4):
    choice = torch.distributions.Categorical(logits=net(inputs))
    choice.log_prob(choice.sample()).sum().backward()
    optimizer.step()
"""

PARTITIONED = """
import deepspeed
import torch
with deepspeed.zero.Init():
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16))
engine, *_ = deepspeed.initialize(
    model=net, config={}, optimizer=torch.optim.AdamW(net.parameters()))
for _ in range(2):
    engine.backward(engine(torch.randn(4, 16)).sum())
    engine.step()
"""

REFERENCE = """
import copy
import deepspeed
import torch
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
reference, *_ = deepspeed.initialize(model=copy.deepcopy(net), config={
    "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}})
engine, *_ = deepspeed.initialize(
    model=net, optimizer=torch.optim.AdamW(net.parameters()), config={})
for _ in range(3):
    inputs = torch.randn(4, 64)
    with torch.no_grad():
        targets = reference(inputs)
    engine.backward((engine(inputs) - targets).pow(2).mean())
    engine.step()
"""


def test_a_plain_loop_needs_what_it_needs_on_real_tensors(tmp_path):
    said = dry_run(tmp_path, "plain_loop.py", memory=10 ** 6)
    numbers = 2 * 32 * 64
    assert said["num_params"] == said["trainable_num_params"] == numbers
    assert (said["micro_batch_size"], said["stage"], said["notes"]) == (4, None, [])
    # Two FLOPs for each weight forwards and for its gradient, and for that of the second's input.
    assert said["flops_per_sample"] == 2 * numbers * 2 + numbers
    row = said["rows"][0]
    assert row["kinds"]["parameters"] == row["kinds"]["gradients"] == 4 * numbers
    assert row["kinds"]["optimizer"] == 2 * 4 * numbers + 2 * 4  # And two counters of steps.
    assert row["peak_bytes"] == sum(row["kinds"].values()) == real_peak(tmp_path, "plain_loop.py")
    largest = row["largest_micro_batch"]
    assert [max(a + b * size for a, b in row["lines"]) <= 10 ** 6
            for size in (largest, largest + 1)] == [True, False]


def test_every_stage_holds_its_share_of_the_states(tmp_path):
    said = dry_run(tmp_path, "own_optimizer.py", ds_config={
        **CONFIG, "train_micro_batch_size_per_gpu": 64, "bf16": {"enabled": True},
        "zero_force_ds_cpu_optimizer": False}, ranks=4, all_stages=True, memory=10 ** 6)
    rows = {row["settings"]: row for row in said["rows"]}
    assert said["ranks"] == 4 and said["num_params"] == MODEL
    states = 12 * MODEL  # The 32-bit copy and two moments.
    for name, share in (("stage_0", 1), ("stage_1", 4), ("stage_2", 4), ("stage_3", 4)):
        kinds = rows[name]["kinds"]
        assert kinds["optimizer"] == pytest.approx(states / share, rel=0.02), name
        if name != "stage_3":
            assert kinds["parameters"] == pytest.approx(2 * MODEL, rel=0.02), name
    for name in ("stage_1_offload_optimizer", "stage_2_offload_optimizer", "stage_3_offload"):
        assert rows[name]["kinds"]["optimizer"] == 0, name
        assert rows[name]["host_bytes"] > states / 4, name
    assert rows["as submitted"]["peak_bytes"] == rows["stage_2"]["peak_bytes"]


@pytest.mark.parametrize("stage", [2, 3])
def test_ranks_with_real_tensors_need_what_was_predicted(tmp_path, stage):
    config = {**CONFIG, "zero_optimization": {**CONFIG["zero_optimization"], "stage": stage}}
    said = dry_run(tmp_path, "own_optimizer.py", ds_config=config, ranks=2)
    real = real_peak(tmp_path, "own_optimizer.py", ranks=2, ds_config=config)
    assert said["rows"][0]["peak_bytes"] == pytest.approx(real, rel=0.01)


def test_a_search_gets_the_peaks_of_all_stages(tmp_path):
    said = dry_run(tmp_path, "own_optimizer.py", ds_config=CONFIG, ranks=2, stages=[0, 2, 3],
                   report=str(tmp_path / "report.json"))
    profile = said["profile"]
    assert said["ran"]["data_parallel_size"] == 2
    assert profile["num_params"] == profile["trainable_num_params"] == MODEL
    assert [peak["stage"] for peak in profile["dry_places"]] == [2, 0, 3]
    assert profile["process_bytes"] > 10 ** 8
    for peak in profile["dry_places"]:
        section = {**CONFIG["zero_optimization"], "stage": peak["stage"]}
        alone = dry_run(tmp_path, "own_optimizer.py", ranks=2, ds_config={
            **CONFIG, "train_micro_batch_size_per_gpu": 16, "zero_optimization": section})
        heights = [start + 16 * slope for start, slope in peak["lines"]]
        assert max(heights) == pytest.approx(alone["rows"][0]["peak_bytes"], rel=0.01)


def test_a_script_that_refuses_small_batches_gives_a_search_its_profile(tmp_path):
    (tmp_path / "train.py").write_text(f"""
import json, os, sys
if json.load(open(os.environ["DSAT_DS_CONFIG"]))["train_micro_batch_size_per_gpu"] < 4:
    raise ValueError("too few")
sys.path.insert(0, {str(SCRIPTS)!r})
exec(open({str(SCRIPTS / "own_optimizer.py")!r}).read())
""")
    said = dry_run(tmp_path, tmp_path / "train.py", ds_config=CONFIG, stages=[2],
                   report=str(tmp_path / "report.json"))
    lines = said["profile"]["dry_places"][0]["lines"]
    plain = dry_run(tmp_path, "own_optimizer.py", ds_config=CONFIG)["rows"][0]
    assert max(start + 4 * slope for start, slope in lines) == plain["peak_bytes"]


def test_the_work_and_the_collectives_of_a_place_are_those_of_the_script(tmp_path):
    profile = dry_run(tmp_path, "own_optimizer.py", ds_config=CONFIG, ranks=2, stages=[0, 2, 3],
                      on_gpu=True, speeds=[1e6, 1e18])["profile"]
    places = {place["stage"]: place for place in profile["dry_places"]}
    per_sample = 3 * profile["forward_flops_per_sample"] / 1e6 * 1e3
    for stage, place in places.items():
        assert place["passes_ms"][1] == pytest.approx(per_sample, rel=0.01), stage
        assert 0 < place["passes_ms"][0] < 50 * per_sample and place["update_ms"] > 0, stage
        # Half of all gradients goes around the ring of two ranks twice, at stage 3 once.
        reduced = 4 * MODEL / (2 if stage == 3 else 1)
        assert place["passes_sent"][1] >= reduced * 0.99, stage
    # Only stages above 0 gather what they have updated.
    assert places[0]["update_sent"][1] < 100 < 4 * MODEL / 2 <= places[2]["update_sent"][1]
    assert places[3]["passes_sent"][0] > places[0]["passes_sent"][0]


def test_offload_is_run_dry_where_the_submitted_config_does_not_fit(tmp_path):
    config = {**CONFIG, "zero_force_ds_cpu_optimizer": False}
    places = dry_run(tmp_path, "own_optimizer.py", ds_config=config, ranks=2, stages=[2, 3],
                     memory=10_000, on_gpu=True, speeds=[1e12, 1e12])["profile"]["dry_places"]
    kinds = [(place["stage"], place["offloads_optimizer"], place["offloads_params"])
             for place in places]
    assert kinds == [(2, False, False), (3, False, False), (2, True, False), (3, True, False),
                     (3, True, True)]
    starts = [max(start for start, _ in place["lines"]) for place in places]
    assert starts[2] < starts[0] and starts[4] < starts[3] < starts[1]


def test_the_cpus_memory_has_only_what_a_bucket_holds(tmp_path):
    config = {**CONFIG, "zero_optimization": {"stage": 2}}  # A bucket of 500 million.
    peaks = [dry_run(tmp_path, "own_optimizer.py", ds_config=config, stages=[2], on_gpu=on_gpu,
                     report=str(tmp_path / "report.json"))["profile"]["dry_places"][0]["lines"][0]
             for on_gpu in (False, True)]
    assert max(peaks[0]) < 10 ** 6 and max(peaks[1]) > 10 ** 9


def test_a_loop_without_deepspeed_gives_a_search_no_profile(tmp_path):
    said = dry_run(tmp_path, "plain_loop.py", stages=[1], report=str(tmp_path / "report.json"))
    assert "plain_loop.py: it ended before the second step of an engine of " in said["error"]


@pytest.mark.parametrize("text, numbers", [
    pytest.param(COPIES, 2 * 64 * 64, id="copies"),
    pytest.param(EXPERTS, 16 * 4 + 4 * 16 * 32, id="experts")])
def test_a_script_holds_what_it_holds_on_real_tensors(tmp_path, text, numbers):
    (tmp_path / "script.py").write_text(text)
    said = dry_run(tmp_path, tmp_path / "script.py")
    row = said["rows"][0]
    assert said["num_params"] == numbers
    assert row["kinds"]["parameters"] == 4 * numbers
    assert row["peak_bytes"] == real_peak(tmp_path, tmp_path / "script.py")
    assert said["flops_per_sample"] > numbers  # A row takes one of four experts, twice.
    # Parameters, gradients, and the batch's activations.
    assert row["peak_bytes"] < 2 * 4 * numbers + 20_000


@pytest.mark.parametrize("text", [
    pytest.param(MASKS, id="masks_and_lengths_of_data"),
    pytest.param(OVERWRITTEN, id="data_with_other_values"),
    pytest.param(RECURRENT, id="recurrent")])
def test_what_operators_make_of_data_is_counted(tmp_path, text):
    (tmp_path / "script.py").write_text(text)
    said = dry_run(tmp_path, tmp_path / "script.py")
    assert (said.get("error"), said.get("notes")) == (None, [])
    real = real_peak(tmp_path, tmp_path / "script.py")
    assert said["rows"][0]["peak_bytes"] == pytest.approx(real, rel=0.01)


def test_parameters_are_trained_that_have_gradients(tmp_path):
    (tmp_path / "script.py").write_text(CONTAINERS)
    said = dry_run(tmp_path, tmp_path / "script.py")
    assert said["num_params"] == 16 * 8 + 8 * 3 + 16 * 3
    assert said["trainable_num_params"] == 8 * 3
    assert said["rows"][0]["kinds"]["gradients"] == 4 * 8 * 3


def test_batches_that_are_not_trained_on_are_not_accumulated(tmp_path):
    (tmp_path / "script.py").write_text(EVALUATES)
    said = dry_run(tmp_path, tmp_path / "script.py")
    assert (said["micro_batch_size"], said["accumulation_steps"]) == (4, 2)


@pytest.mark.parametrize("text, numbers", [
    pytest.param(ATTENTION_OF_PYTORCH, 2 * 32 * 16 + 32 + 16 + (4 * 16 + 4 + 4) * 16,
                 id="attention"),
    pytest.param(DISTRIBUTION, 17 * 4, id="distribution")])
def test_layers_and_distributions_of_pytorch_are_followed(tmp_path, text, numbers):
    (tmp_path / "script.py").write_text(text)
    said = dry_run(tmp_path, tmp_path / "script.py")
    assert (said.get("error"), said.get("num_params")) == (None, numbers)
    assert said["rows"][0]["peak_bytes"] == pytest.approx(
        real_peak(tmp_path, tmp_path / "script.py"), rel=0.01)


@pytest.mark.parametrize("version", [1, 2])
def test_what_pytorch_partitions_needs_what_was_predicted(tmp_path, version):
    (tmp_path / "script.py").write_text(PARTITIONED_BY_PYTORCH.format(version=version))
    said = dry_run(tmp_path, tmp_path / "script.py", ranks=2)
    assert (said.get("error"), said.get("num_params")) == (None, 8 * 65 * 64)
    row = said["rows"][0]
    assert row["peak_bytes"] == real_peak(tmp_path, tmp_path / "script.py", ranks=2)
    # A rank's half of parameters, moments and gradients, and some whole layers.
    assert row["peak_bytes"] < 4 * (4 / 2 * 8 + 10) * 65 * 64


def test_all_optimizers_make_two_steps(tmp_path):
    (tmp_path / "script.py").write_text(OF_TWO_OPTIMIZERS)
    said = dry_run(tmp_path, tmp_path / "script.py")
    numbers = 64 + 1 + (16 + 1) * 64
    assert (said["num_params"], said["notes"]) == (numbers, [])
    kinds = said["rows"][0]["kinds"]
    assert kinds["optimizer"] == 2 * 4 * numbers + 4 * 4  # And a counter of each tensor's steps.


def test_all_engines_make_two_steps(tmp_path):
    (tmp_path / "script.py").write_text(OF_TWO_ENGINES)
    said = dry_run(tmp_path, tmp_path / "script.py", ds_config={
        **CONFIG, "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": 0}})
    assert (said.get("error"), said.get("num_params")) == (None, 65 * 64)
    assert not any("ended" in note for note in said["notes"])
    # The peak is in the second step of the second engine, whose moments exist.
    assert said["rows"][0]["kinds"]["optimizer"] >= 2 * 4 * (65 * 64 + 17)


def test_a_dry_run_leaves_no_temporary_files(tmp_path):
    (tmp_path / "script.py").write_text(OF_WORKERS)
    with tempfile.TemporaryDirectory() as folder:  # Its path is short.
        assert dry_run(folder, tmp_path / "script.py")["notes"] == []
        assert not [name for name in os.listdir(folder) if name.startswith(("left-by", "pymp-"))]


def test_a_script_that_starts_its_ranks_runs_as_the_first_of_them(tmp_path):
    (tmp_path / "script.py").write_text(SPAWNS)
    said = dry_run(tmp_path, tmp_path / "script.py")
    assert (said.get("error"), said.get("notes")) == (None, [])
    # The parameters, their gradients, and what is sent.
    assert said["rows"][0]["peak_bytes"] > 3 * 4 * (64 + 1) * 64


def test_a_reference_model_has_no_optimizer(tmp_path):
    (tmp_path / "script.py").write_text(REFERENCE)
    config = {**CONFIG, "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 1000}}
    row = dry_run(tmp_path, tmp_path / "script.py", ds_config=config)["rows"][0]
    # The trained copy in 32 bits and two moments, and not those of the reference.
    assert row["kinds"]["optimizer"] == pytest.approx(3 * 4 * 2 * 65 * 64, rel=0.01)
    real = real_peak(tmp_path, tmp_path / "script.py", ds_config=config)
    assert row["peak_bytes"] == pytest.approx(real, rel=0.01)


def test_a_model_that_is_partitioned_from_the_start_is_followed(tmp_path):
    (tmp_path / "train.py").write_text(PARTITIONED)
    said = dry_run(tmp_path, tmp_path / "train.py", ranks=2, all_stages=False,
                   ds_config={**CONFIG, "zero_optimization": {"stage": 3}})
    assert said["num_params"] == 16 * 16 + 16 + 2 * 16
    assert said["rows"][0]["kinds"]["optimizer"] > 2 * 4 * said["num_params"] // 2


def test_batches_without_a_loader_are_the_scripts_own(tmp_path):
    (tmp_path / "train.py").write_text(OWN_BATCHES)
    said = dry_run(tmp_path, tmp_path / "train.py", environment={"CONFIG": "{ds_config}"})
    assert said["micro_batch_size"] == 0
    assert said["notes"] == ["No data loader shows the micro-batch size: the script's own counts."]
    assert said["rows"][0]["kinds"]["parameters"] == 4 * (16 * 4 + 4)


def test_a_size_with_less_than_two_steps_says_nothing_about_others(tmp_path):
    (tmp_path / "train.py").write_text(EPOCHS)
    once, twice = (dry_run(tmp_path, tmp_path / "train.py", epochs, memory=10 ** 6)
                   for epochs in ("1", "3"))
    assert once["notes"] == ["With micro-batch 8: the script ended after its first optimizer step"]
    assert "largest_micro_batch" not in once["rows"][0]
    assert twice["notes"] == [] and twice["rows"][0]["largest_micro_batch"] > 100
    assert once["rows"][0]["peak_bytes"] == twice["rows"][0]["peak_bytes"]
    assert not (tmp_path / "checkpoint.pt").exists()


def test_what_ends_a_script_before_it_trains_is_quoted(tmp_path):
    (tmp_path / "train.py").write_text("print('no such option: --x')\nraise SystemExit(2)\n")
    said = dry_run(tmp_path, tmp_path / "train.py")
    assert said["error"].endswith(
        "it ended with exit code 2; its last line is: no such option: --x")
    (tmp_path / "train.py").write_text(OWN_BATCHES.replace("optimizer.step()", ""))
    said = dry_run(tmp_path, tmp_path / "train.py", environment={"CONFIG": "{ds_config}"})
    assert "no optimizer of PyTorch has made a step" in said["error"]
    pytest.importorskip("accelerate")
    said = dry_run(tmp_path, tmp_path / "train.py", accelerate=["--config_fil", "a", "train.py"])
    assert "--config_fil" in said["error"]
    assert "usage" not in said["error"]


def test_what_ends_a_script_after_its_first_step_is_named(tmp_path):
    (tmp_path / "train.py").write_text(OWN_BATCHES + "    raise ValueError('no more data')\n")
    notes = dry_run(tmp_path, tmp_path / "train.py", environment={"CONFIG": "{ds_config}"})["notes"]
    assert notes[0] == ("The script ended after its first optimizer step: line 13 (raise "
                        "ValueError('no more data')): ValueError: no more data.")


def test_a_line_of_the_script_is_named_that_looks_at_values(tmp_path):
    said = dry_run(tmp_path, "looks_at_values.py")
    assert "looks_at_values.py: line 8 (outputs[outputs > 0].sum().backward()): " in said["error"]
    assert "depends on values, which fake tensors do not have; a search (" in said["error"]


def run_with(curve, phases):
    rows = numpy.zeros((len(curve), 7), dtype=numpy.int64)
    rows[:, 0] = curve
    return _dry_process.Run({}, rows, numpy.array(phases, dtype=numpy.uint8))


def test_the_peak_of_other_sizes_may_be_at_another_operator():
    line = _dry_run.Line([run_with([100, 40, 10], [2, 2, 3]), run_with([110, 70, 10], [2, 2, 3])],
                         [4, 8])
    assert [line.at(size) for size in (4, 8, 20, 40)] == [100, 110, 160, 310]
    assert line.highest() == [(90.0, 2.5), (10.0, 7.5)]
    assert line.last_within(160) == 20 and line.last_within(80) == 0


def test_runs_with_other_operators_are_compared_by_parts():
    line = _dry_run.Line([run_with([100, 40, 10], [2, 2, 3]),
                          run_with([110, 70, 30, 20], [2, 2, 3, 3])], [4, 8])
    assert line.highest() == [(90.0, 2.5), (-10.0, 5.0)]
