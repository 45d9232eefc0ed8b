"""Dry runs for GPUs, and of scripts with Hugging Face's packages."""
import pytest
from dry_runs import CONFIG, MODEL, dry_run, real_peak

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

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

AUTOCAST = """
import sys
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(8)])
optimizer = torch.optim.SGD(net.parameters())
kinds = {"none": {"device_type": "cpu", "enabled": False}, "cuda": {"device_type": "cuda"},
         "cpu": {"device_type": "cpu", "dtype": torch.float16}}
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(8192, 64)), batch_size=1024):
    with torch.autocast(**kinds[sys.argv[1]]):
        loss = net(inputs).sum()
    loss.backward()
    optimizer.step()
"""

DROPOUT = """
import torch
net = torch.nn.Sequential(*[layer for _ in range(4) for layer in (
    torch.nn.Linear(64, 64), torch.nn.Dropout(0.1))])
optimizer = torch.optim.SGD(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(8192, 64)), batch_size=1024):
    net(inputs).sum().backward()
    optimizer.step()
"""

IDLE_PARTS = """
import torch
assert torch.accelerator.is_available() and torch.accelerator.device_count() == 2
device = torch.accelerator.current_accelerator()
torch.accelerator.set_device_index(0)
net = torch.nn.parallel.DataParallel(torch.nn.Linear(16, 4).to(device))
torch.save(net.state_dict(), "weights.pt")
net.load_state_dict(torch.load("given.pt", map_location=f"{device}:1"))
optimizer = torch.optim.SGD(net.parameters())
side, start, end = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 16)), batch_size=4, pin_memory=True):
    with torch.cuda.device(0), torch.cuda.stream(side), torch.cuda.nvtx.range("step"):
        start.record()
        net(inputs.type(torch.cuda.FloatTensor)).sum().backward()
        optimizer.step()
        end.record()
    torch.cuda.current_stream().wait_stream(side)
    print(f"{start.elapsed_time(end):.1f} {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB")
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    torch.empty(4, pin_memory=True)
"""

NEEDS_GPU = """
import torch
assert torch.cuda.is_available()
device = 1 % torch.cuda.device_count()
assert torch.accelerator.is_available() and torch.accelerator.device_count() == 2
assert torch.accelerator.current_accelerator().type == "cuda"
torch.accelerator.set_device_index(device)
torch.accelerator.synchronize()
net = torch.nn.Linear(16, 4).to(device)
assert isinstance(type(net.weight)(net.weight, requires_grad=False), torch.nn.Parameter)
optimizer = torch.optim.SGD(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 16)), batch_size=4):
    scaler.scale((net(inputs.to(device)) + torch.ones(4, device=device)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    print(scaler.state_dict()["scale"], torch.cuda.get_device_properties(device).total_memory)
"""

PRECISION_OF_ACCELERATE = """
import sys
import torch
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision=sys.argv[1])
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(8192, 64)), batch_size=1024)
net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters()), loader)
for inputs, in loader:
    accelerator.backward(net(inputs).sum())
    accelerator.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
"""

OF_ACCELERATE = """
import sys
sys.path.append(sys.argv[1])
from helper import train
train()
"""

HELPER = """
import torch
from accelerate import Accelerator


def train():
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(256, 64)), batch_size=4)
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters()), loader)
    for inputs, in loader:
        accelerator.backward(net(inputs).sum())
        optimizer.step()
        optimizer.zero_grad()
"""

GENERATES = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
TrainingArguments(output_dir="out", bf16=True, report_to="none")  # It asks for a GPU.
net = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2,
                                 bos_token_id=0, eos_token_id=0, pad_token_id=0))
optimizer = torch.optim.SGD(net.parameters())
data = torch.utils.data.TensorDataset(torch.ones(16, 8, dtype=torch.int64))
for inputs, in torch.utils.data.DataLoader(data, batch_size=4):
    tokens = net.generate(inputs, max_new_tokens=5)
    tokens = tokens[(tokens != 0).all(dim=1)]
    assert tokens.shape == (len(inputs), 13)
    net(tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SAVES = """
import pathlib
import torch
from safetensors.torch import save_file
file = pathlib.Path("model.safetensors")
file.write_text("mine")
net = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 16)), batch_size=4):
    net(inputs).sum().backward()
    optimizer.step()
    save_file(net.state_dict(), file)
"""


def test_attention_with_dropout_is_fused_on_a_gpu(tmp_path):
    (tmp_path / "attention.py").write_text(ATTENTION)
    on_cpu, on_gpu = (dry_run(tmp_path, tmp_path / "attention.py", on_gpu=on_gpu)["rows"][0]
                      for on_gpu in (False, True))
    scores = 4 * 2 * 128 * 128 * 4  # A micro-batch of 4 has them for two heads, in 32 bits.
    assert on_cpu["peak_bytes"] - on_gpu["peak_bytes"] > 2 * scores


def test_masks_of_dropout_are_bytes_on_a_gpu(tmp_path):
    (tmp_path / "train.py").write_text(DROPOUT)
    on_cpu, on_gpu = (dry_run(tmp_path, tmp_path / "train.py", on_gpu=on_gpu)["rows"][0]["peak_bytes"]
                      for on_gpu in (False, True))
    assert on_cpu - on_gpu == pytest.approx((4 - 1) * 4 * 1024 * 64, rel=0.05)


def test_a_script_that_needs_a_gpu_finds_one(tmp_path):
    (tmp_path / "train.py").write_text(NEEDS_GPU)
    said = dry_run(tmp_path, tmp_path / "train.py", on_gpu=True, ranks=2)
    assert said["num_params"] == 16 * 4 + 4 and said["notes"] == []
    said = dry_run(tmp_path, tmp_path / "train.py", ranks=2)
    assert "train.py: line 3 (assert torch.cuda.is_available()): " in said["error"]


def test_parts_of_cuda_do_nothing(tmp_path):
    import torch
    layer = torch.nn.Linear(16, 4)
    torch.save({f"module.{name}": value for name, value in layer.state_dict().items()},
               tmp_path / "given.pt")
    (tmp_path / "train.py").write_text(IDLE_PARTS)
    said = dry_run(tmp_path, tmp_path / "train.py", on_gpu=True, ranks=2)
    assert (said.get("error"), said.get("notes")) == (None, [])


def test_a_gpu_trains_with_fp16(tmp_path):
    said = dry_run(tmp_path, "own_optimizer.py", on_gpu=True, ds_config={
        **CONFIG, "fp16": {"enabled": True}, "zero_force_ds_cpu_optimizer": False})
    kinds = said["rows"][0]["kinds"]
    assert said["notes"] == [] and kinds["parameters"] == pytest.approx(2 * MODEL, rel=0.02)


def test_a_gpus_autocast_computes_in_16_bits(tmp_path):
    (tmp_path / "train.py").write_text(AUTOCAST)
    peaks = [dry_run(tmp_path, tmp_path / "train.py", kind, on_gpu=True)["rows"][0]["peak_bytes"]
             for kind in ("none", "cpu", "cuda")]
    assert peaks[2] == peaks[1] < 0.8 * peaks[0]


def test_accelerate_has_fp16_on_a_gpu(tmp_path):
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(PRECISION_OF_ACCELERATE)
    peaks = [dry_run(tmp_path, tmp_path / "train.py", kind, on_gpu=True)["rows"][0]["peak_bytes"]
             for kind in ("no", "bf16", "fp16")]
    assert peaks[2] == pytest.approx(peaks[1], rel=0.01) and peaks[2] < 0.8 * peaks[0]


def test_a_gpu_updates_all_tensors_at_once(tmp_path):
    (tmp_path / "train.py").write_text(
        AUTOCAST.replace("SGD", "AdamW").replace("batch_size=1024", "batch_size=4"))
    on_cpu, on_gpu = (dry_run(tmp_path, tmp_path / "train.py", "none", on_gpu=on_gpu)
                      ["rows"][0]["peak_bytes"] for on_gpu in (False, True))
    # The square roots of all eight weights in place of what one weight takes, at the most three.
    assert on_gpu - on_cpu >= (8 - 3) * 4 * 64 * 64


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_has_all_ranks_wherever_it_is_imported(tmp_path, ranks):
    pytest.importorskip("accelerate")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/helper.py").write_text(HELPER)
    (tmp_path / "train.py").write_text(OF_ACCELERATE)
    (tmp_path / "real.py").write_text(OF_ACCELERATE.replace("sys.argv[1]", "'folder'"))
    said = dry_run(tmp_path, tmp_path / "train.py", "folder", ranks=ranks, memory=10 ** 6,
                   is_launched=True)
    assert said["micro_batch_size"] == 4 and said["notes"] == []
    real = real_peak(tmp_path, tmp_path / "real.py", ranks=ranks)
    assert said["rows"][0]["peak_bytes"] == pytest.approx(real, rel=0.01)
    assert said["rows"][0]["largest_micro_batch"] > 100
    by_hand = dry_run(tmp_path, tmp_path / "train.py", "folder", ranks=ranks)
    assert by_hand["micro_batch_size"] == 4


@pytest.mark.parametrize("by_module", [False, True])
def test_generated_tokens_are_data_of_the_greatest_length(tmp_path, by_module):
    pytest.importorskip("transformers")
    (tmp_path / "train.py").write_text("import own" if by_module else GENERATES)
    (tmp_path / "own.py").write_text(GENERATES)
    said = dry_run(tmp_path, tmp_path / "train.py")
    assert (said.get("error"), said.get("notes")) == (None, [])


def test_nothing_is_saved_in_place_of_a_checkpoint(tmp_path):
    pytest.importorskip("safetensors")
    (tmp_path / "train.py").write_text(SAVES)
    said = dry_run(tmp_path, tmp_path / "train.py")
    assert (said.get("error"), said.get("notes")) == (None, [])
    assert (tmp_path / "model.safetensors").read_text() == "mine"
