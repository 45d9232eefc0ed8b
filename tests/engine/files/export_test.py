"""Opens the files that export_program.cc writes: export_test.py PROGRAM READER.

READER zip needs nothing but Python, torch needs PyTorch, safetensors and transformers need that and
PyTorch. Exit status 77: it is missing.
"""

import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import zipfile

SHAPES = {"a.weight": (3, 5), "b.bias": (7,), "c": (2, 3, 4), "nothing": (0, 4), "größe": ()}
C, V = 24, 127  # Width and vocabulary of the model.


def skip(missing):
    print(f"skipped: no {missing} here")
    sys.exit(77)


def formula(shape):
    return [float(i * 37 % 200 - 100) for i in range(math.prod(shape))]


def check_zip(folder):
    for name in ["plain.bin", "zip64.bin", "pytorch_model.bin", "fp32.bin"]:
        path = os.path.join(folder, name)
        with zipfile.ZipFile(path) as archive, open(path, "rb") as raw:
            assert archive.testzip() is None, name  # Sums are right.
            names = archive.namelist()
            assert names[0] == "archive/data.pkl" and "archive/version" in names, names
            for info in archive.infolist():
                assert info.compress_type == zipfile.ZIP_STORED
                raw.seek(info.header_offset)
                header = struct.unpack("<IHHHHHIIIHH", raw.read(30))
                data = info.header_offset + 30 + header[9] + header[10]
                assert data % 64 == 0, (name, info.filename)
                raw.seek(data)
                assert raw.read(info.file_size) == archive.read(info)
                large = name == "zip64.bin" and info.file_size >= 30
                assert header[6] == info.CRC and header[1] == (45 if large else 20), info
                assert (header[7] == 0xFFFFFFFF) == large
    with zipfile.ZipFile(os.path.join(folder, "zip64.bin")) as archive:
        values = struct.unpack("<15f", archive.read("archive/data/0"))
        assert list(values) == formula((3, 5))


def check_formula(tensors):
    assert list(tensors) == list(SHAPES) or set(tensors) == set(SHAPES), list(tensors)
    dtypes = {"b.bias": torch.bfloat16, "c": torch.float16}
    for name, shape in SHAPES.items():
        tensor = tensors[name]
        assert tuple(tensor.shape) == shape, (name, tensor.shape)
        assert tensor.dtype == dtypes.get(name, torch.float32), (name, tensor.dtype)
        assert tensor.is_contiguous() and not tensor.requires_grad
        assert tensor.float().flatten().tolist() == formula(shape), name


def check_model(tensors, dtype):
    assert len(tensors) == 28 and "lm_head.weight" not in tensors, sorted(tensors)
    assert tuple(tensors["wte.weight"].shape) == (V, C)
    assert tuple(tensors["h.1.attn.c_attn.weight"].shape) == (C, 3 * C)  # Conv1D: (in, out)
    assert tuple(tensors["h.0.mlp.c_proj.weight"].shape) == (4 * C, C)
    assert all(tensor.dtype == dtype for tensor in tensors.values())
    assert (tensors["ln_f.weight"].float() - 1).abs().max() < 0.1
    assert 0.005 < tensors["wte.weight"].float().std() < 0.05


def check_torch(folder):
    def load(name, **options):
        return torch.load(os.path.join(folder, name), weights_only=True, **options)

    for name in ["plain.bin", "zip64.bin"]:
        check_formula(load(name))
        check_formula(load(name, mmap=True))
    check_model(load("fp32.bin"), torch.float32)
    check_model(load("pytorch_model.bin"), torch.bfloat16)
    for dtype, name in [(torch.bfloat16, "bf16.bin"), (torch.float16, "fp16.bin")]:
        narrow = load(name)
        check_model(narrow, dtype)
        for key, value in load("fp32.bin").items():
            assert torch.equal(narrow[key], value.to(dtype)), (name, key)
    for key, value in load("pytorch_model.bin").items():
        assert torch.equal(value, load("bf16.bin")[key]), key  # The masters, rounded.


def check_safetensors(folder):
    check_formula(load_file(os.path.join(folder, "plain.safetensors")))
    for ours, theirs in [("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"),
                         ("model", "pytorch_model")]:
        path = os.path.join(folder, ours + ".safetensors")
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
        expected = torch.load(os.path.join(folder, theirs + ".bin"), weights_only=True)
        tensors = load_file(path)
        assert tensors.keys() == expected.keys()
        for key, value in expected.items():
            assert tensors[key].dtype == value.dtype and torch.equal(tensors[key], value), key


def check_transformers(folder):
    check_causal_lm(os.path.join(folder, "gpt2"), GPT2LMHeadModel)
    check_causal_lm(os.path.join(folder, "llama"), LlamaForCausalLM)


def check_causal_lm(folder, kind):
    with open(os.path.join(folder, "step.json")) as file:
        step = json.load(file)
    tokens, targets = torch.tensor(step["tokens"]), torch.tensor(step["targets"])
    for name in ["model.safetensors", "pytorch_model.bin"]:
        model, info = kind.from_pretrained(
            os.path.join(folder, name + ".d"), output_loading_info=True, local_files_only=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        with torch.no_grad():
            logits = model.eval()(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long())
        assert abs(loss.item() - step["loss"]) < 1e-5, (name, loss.item(), step["loss"])


what = sys.argv[2]
if what != "zip":
    try:
        import torch
    except ImportError:
        skip("PyTorch")
if what == "safetensors":
    try:
        from safetensors import safe_open
        from safetensors.torch import load_file
    except ImportError:
        skip("safetensors")
if what == "transformers":
    try:
        from transformers import GPT2LMHeadModel, LlamaForCausalLM
    except ImportError:
        skip("transformers")
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.argv[1], folder], check=True)
    {"zip": check_zip, "torch": check_torch, "safetensors": check_safetensors,
     "transformers": check_transformers}[what](folder)
