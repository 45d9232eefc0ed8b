"""Trains a GPT-2 with `dsat train` and with PyTorch, by every optimizer that PyTorch has:
weight_decay_torch_test.py DSAT.

With decay_norms_and_biases false, parameters of one dimension are a group of their own without
weight decay, as Hugging Face's Trainer makes it. Exit status 77: PyTorch is missing.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../model"))
from model_torch_test import gpt2, gpt2_params, torch, write_safetensors  # noqa: E402

SHAPE = {"n_layer": 2, "n_embd": 24, "n_head": 3, "n_positions": 16, "vocab_size": 61}
STEPS = 4
# Data of one sample, which every step reads in every row.
TOKENS = [3, 14, 15, 60, 2, 6, 53, 5, 8, 9, 7, 9, 32, 38, 46, 26, 43]


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(bytearray(data[slice(*entry["data_offsets"])]), dtype=torch.float32)
            .reshape(entry["shape"]) for name, entry in header.items()}


def run_dsat(dsat, folder, *words):
    return subprocess.run([dsat, *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def train_dsat(dsat, folder, out, ranks, model, data, ds_config):
    """Trains on folder/model.safetensors into the folder `out`; gives the parameters."""
    files = {
        "exp.yaml": {
            "name": "test", "entrypoint": "builtin", "resources": {"slots_per_trial": ranks},
            "hyperparameters": {
                "deepspeed_config": "ds_config.json",
                "model": {"type": "gpt2", "weights": "model.safetensors", **model}, "data": data}},
        "ds_config.json": {"gradient_clipping": 0, "zero_allow_untested_optimizer": True, **ds_config}}
    for name, content in files.items():
        with open(os.path.join(folder, name), "w") as file:
            json.dump(content, file)
    run_dsat(dsat, folder, "train", "exp.yaml", "--steps", str(STEPS), "--out", out)
    run_dsat(dsat, folder, "collate", os.path.join(out, "checkpoint"), out + ".safetensors")
    return read_safetensors(out + ".safetensors")


def train_torch(make_optimizer, values):
    params = {name: value.clone().requires_grad_() for name, value in values.items()}
    optimizer = make_optimizer([
        {"params": [p for p in params.values() if p.dim() >= 2]},
        {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0}])
    tokens = torch.tensor([TOKENS])
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = gpt2(params, SHAPE, tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    return params


def check(dsat, folder, values, optimizer, make_optimizer, stage):
    actual = train_dsat(
        dsat, folder, os.path.join(folder, f"{optimizer['type']}-{stage}"), 2, SHAPE,
        {"type": "tokens", "path": "data.bin", "vocab_size": 61, "seq_len": 16},
        {"train_batch_size": 2, "optimizer": optimizer, "zero_optimization": {"stage": stage}})
    expected = train_torch(make_optimizer, values)
    assert set(actual) >= set(expected), set(expected) - set(actual)
    for name, param in expected.items():
        difference = (actual[name] - param.detach()).abs().max().item()
        # Decay changes a weight of 1 by a hundred times as much in this time.
        assert difference < 2e-4, (optimizer["type"], stage, name, difference)


def main():
    generator = torch.Generator().manual_seed(5)
    values = gpt2_params(SHAPE, generator)
    dsat = os.path.abspath(sys.argv[1])
    settings = {"lr": 0.01, "weight_decay": 0.5}
    # With a small eps, elements with tiny gradients would step by their rounding errors.
    large_eps = {"eps": 1e-3, **settings}
    dampened = {"momentum": 0.9, "dampening": 0.5, **settings}
    nesterov = {"momentum": 0.9, "nesterov": True, **settings}
    cases = [
        ("AdamW", large_eps, {}, torch.optim.AdamW, 2),
        ("Adam", large_eps, {"adam_w_mode": False}, torch.optim.Adam, 1),
        ("SGD", dampened, {}, torch.optim.SGD, 3),
        ("SGD", nesterov, {}, torch.optim.SGD, 0),
        ("Adagrad", large_eps, {}, torch.optim.Adagrad, 2),
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_safetensors(os.path.join(folder, "model.safetensors"), values)
        with open(os.path.join(folder, "data.bin"), "wb") as file:
            file.write(struct.pack(f"<{len(TOKENS)}H", *TOKENS))
        for kind, options, ours, optimizer, stage in cases:
            params = {**options, **ours, "decay_norms_and_biases": False}
            check(dsat, folder, values, {"type": kind, "params": params},
                  lambda groups: optimizer(groups, **options), stage)


if __name__ == "__main__":
    main()
