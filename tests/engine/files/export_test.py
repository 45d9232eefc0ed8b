"""Opens the files that export_program.cc writes: export_test.py PROGRAM READER.

READER is safetensors or transformers, which needs itself and PyTorch. Exit status 77: one is missing.
"""

import json
import math
import os
import subprocess
import sys
import tempfile

SHAPES = {"a.weight": (3, 5), "b.bias": (7,), "c": (2, 3, 4), "nothing": (0, 4), "größe": ()}
C, V = 24, 127  # Width and vocabulary of the model.


def skip(missing):
    print(f"skipped: no {missing} here")
    sys.exit(77)


def formula(shape):
    return [float(i * 37 % 200 - 100) for i in range(math.prod(shape))]


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


def check_safetensors(folder):
    def load(name):
        path = os.path.join(folder, name + ".safetensors")
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
        return load_file(path)

    check_formula(load("plain"))
    whole, saved = load("fp32"), load("model")
    check_model(whole, torch.float32)
    check_model(saved, torch.bfloat16)
    for dtype, name in [(torch.bfloat16, "bf16"), (torch.float16, "fp16")]:
        narrow = load(name)
        check_model(narrow, dtype)
        for key, value in whole.items():
            assert torch.equal(narrow[key], value.to(dtype)), (name, key)
    for key, value in saved.items():
        assert torch.equal(value, load("bf16")[key]), key  # The masters, rounded.
    # The conversion that docs/engine.md shows.
    torch.save(load_file(os.path.join(folder, "fp32.safetensors")), os.path.join(folder, "fp32.bin"))
    converted = torch.load(os.path.join(folder, "fp32.bin"), weights_only=True)
    assert converted.keys() == whole.keys()
    assert all(torch.equal(converted[key], value) for key, value in whole.items())


def check_transformers(folder):
    check_causal_lm(os.path.join(folder, "gpt2"), GPT2LMHeadModel)
    check_causal_lm(os.path.join(folder, "llama"), LlamaForCausalLM)


def check_causal_lm(folder, kind):
    with open(os.path.join(folder, "step.json")) as file:
        step = json.load(file)
    tokens, targets = torch.tensor(step["tokens"]), torch.tensor(step["targets"])
    model, info = kind.from_pretrained(folder, output_loading_info=True, local_files_only=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    with torch.no_grad():
        logits = model.eval()(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long())
    assert abs(loss.item() - step["loss"]) < 1e-5, (loss.item(), step["loss"])


what = sys.argv[2]
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
    {"safetensors": check_safetensors, "transformers": check_transformers}[what](folder)
