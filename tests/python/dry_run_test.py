"""Dry runs of scripts, compared with arithmetic and with runs on real tensors."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT, SCRIPTS, free_port

pytest.importorskip("torch")
pytest.importorskip("deepspeed")
numpy = pytest.importorskip("numpy")
from dsat import _dry_run  # noqa: E402

CONFIG = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
          "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000,
                                "allgather_bucket_size": 1000}}
# The parameters of small_model.py.
MODEL = 32 * 16 + (16 + 1) * 16 + (16 + 1) * 32


ATTENTION = """
import torch
net = torch.nn.Linear(16, 48)
optimizer = torch.optim.AdamW(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 128, 16)), batch_size=4):
    heads = net(inputs).view(-1, 128, 2, 3, 8).permute(3, 0, 2, 1, 4)
    torch.nn.functional.scaled_dot_product_attention(
        *heads, dropout_p=0.1).sum().backward()
    optimizer.step()
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


def environment(**more):
    return {**os.environ, "PYTHONPATH": f"{ROOT}/python/hook:{ROOT}/python", "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", **more}


def dry_run(folder, script, *arguments, ds_config=None, ranks=1, memory=0, all_stages=False,
            on_gpu=False, **more):
    request = {"script": str(SCRIPTS / script), "is_module": False, "arguments": arguments,
               "folder": str(folder), **more,
               "environment": {}, "ds_config": ds_config or {}, "ranks": ranks, "memory": memory,
               "on_gpu": on_gpu, "all_stages": all_stages}
    run = subprocess.run(
        [sys.executable, "-m", "dsat._dry_run", json.dumps(request)], capture_output=True,
        env=environment(DSAT_DS_CONFIG=os.devnull, DSAT_MEASURE="memory", TMPDIR=str(folder)),
        text=True, check=True, timeout=120)
    assert not list(pathlib.Path(folder).glob("dsat-dry-run-*")), "it leaves files"
    return json.loads(pathlib.Path(more["report"]).read_text() if "report" in more else run.stdout)


def real_peak(folder, script, ranks=1, ds_config=None):
    """The highest bytes of a rank that trains on real tensors."""
    config = folder / "ds_config.json"
    config.write_text(json.dumps(ds_config or {}))
    own = {} if ds_config is None else {"DSAT_DS_CONFIG": str(config)}
    port = str(free_port())
    started = [subprocess.Popen(
        [sys.executable, str(ROOT / "bench/script_memory.py"), "--rank", str(SCRIPTS / script)],
        env=environment(PEAK_FILE=str(folder / f"peak{rank}"), MASTER_ADDR="127.0.0.1",
                        MASTER_PORT=port, RANK=str(rank), LOCAL_RANK=str(rank), **own,
                        WORLD_SIZE=str(ranks), LOCAL_SIZE=str(ranks)), cwd=folder,
        stdout=subprocess.DEVNULL) for rank in range(ranks)]
    assert [rank.wait(timeout=120) for rank in started] == [0] * ranks
    return max(int((folder / f"peak{rank}").read_text()) for rank in range(ranks))


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


def test_attention_with_dropout_is_fused_on_a_gpu(tmp_path):
    (tmp_path / "attention.py").write_text(ATTENTION)
    on_cpu, on_gpu = (dry_run(tmp_path, tmp_path / "attention.py", on_gpu=on_gpu)["rows"][0]
                      for on_gpu in (False, True))
    scores = 4 * 2 * 128 * 128 * 4  # A micro-batch of 4 has them for two heads, in 32 bits.
    assert on_cpu["peak_bytes"] - on_gpu["peak_bytes"] > 2 * scores


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


def test_a_reference_model_has_no_optimizer(tmp_path):
    (tmp_path / "script.py").write_text(REFERENCE)
    config = {**CONFIG, "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 1000}}
    row = dry_run(tmp_path, tmp_path / "script.py", ds_config=config)["rows"][0]
    # The trained copy in 32 bits and two moments, and not those of the reference.
    assert row["kinds"]["optimizer"] == pytest.approx(3 * 4 * 2 * 65 * 64, rel=0.01)
    real = real_peak(tmp_path, tmp_path / "script.py", ds_config=config)
    assert row["peak_bytes"] == pytest.approx(real, rel=0.01)


def test_a_line_of_the_script_is_named_that_looks_at_values(tmp_path):
    said = dry_run(tmp_path, "looks_at_values.py")
    assert "looks_at_values.py: line 8 (outputs[outputs > 0].sum().backward()): " in said["error"]
    assert "depends on values, which fake tensors do not have; a search (" in said["error"]


def run_with(curve, phases):
    rows = numpy.zeros((len(curve), 7), dtype=numpy.int64)
    rows[:, 0] = curve
    return _dry_run.Run({}, rows, numpy.array(phases, dtype=numpy.uint8))


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
