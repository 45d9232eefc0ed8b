"""Trains and evaluates on prompts and completions with dsat and PyTorch: loss_mask_torch_test.py DSAT.

A step of PyTorch's usual loop is the mean over ranks and micro-batches of cross_entropy(...,
ignore_index=-100); an evaluation is its mean over all targets that count. Exit status 77: PyTorch
is missing.
"""

import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from weight_decay_torch_test import (  # noqa: E402
    STEPS, gpt2, gpt2_params, run_dsat, torch, train_dsat, write_safetensors)

SHAPE = {"n_layer": 2, "n_embd": 24, "n_head": 3, "n_positions": 16, "vocab_size": 256}
T = 16
# Four samples of 16 tokens and the token after, of which different numbers count.
DOCUMENTS = [("What is it?", "A bee."), ("", "Yes"), ("Say no, then", "no"), ("1 + 1 =", "two"),
             ("Name a color", "red"), ("", "end")]


def samples():
    """(tokens, targets) of each sample: the bytes of the documents, with a zero byte behind each."""
    tokens, targets = [], []
    for prompt, completion in DOCUMENTS:
        document = list((prompt + completion).encode()) + [0]
        tokens += document
        targets += [-100] * len(prompt) + document[len(prompt):]
    tokens, targets = torch.tensor(tokens), torch.tensor(targets)
    return [(tokens[i:i + T][None], targets[i + 1:i + T + 1]) for i in range(0, len(tokens) - T, T)]


def cross_entropy(params, sample, **options):
    logits = gpt2(params, SHAPE, sample[0])[0]
    return torch.nn.functional.cross_entropy(logits, sample[1], ignore_index=-100, **options)


def train_torch(values):
    params = {name: value.clone().requires_grad_() for name, value in values.items()}
    optimizer, losses = torch.optim.SGD(params.values(), lr=0.1), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = sum(cross_entropy(params, sample) for sample in samples()) / 4
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    num_counted = sum((targets != -100).sum() for _, targets in samples())
    evaluated = sum(cross_entropy(params, sample, reduction="sum") for sample in samples()) / num_counted
    return params, losses, evaluated.item()


def evaluate_dsat(dsat, folder, ranks, settings):
    out = tempfile.mkdtemp(dir=folder)
    params = train_dsat(
        dsat, folder, out, ranks, SHAPE,
        {"type": "jsonl", "path": "data.jsonl", "seq_len": T, "validation": {"path": "data.jsonl"}},
        {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1,
         "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, **settings})
    with open(os.path.join(out, "metrics.jsonl")) as file:
        losses = [json.loads(line)["loss"] for line in file]
    evaluated = run_dsat(dsat, folder, "eval", "exp.yaml", "--checkpoint", os.path.join(out, "checkpoint"), "--json")
    return params, losses, json.loads(evaluated)["loss"]


def main():
    values = gpt2_params(SHAPE, torch.Generator().manual_seed(5))
    params, losses, evaluated = train_torch(values)
    with tempfile.TemporaryDirectory() as folder:
        write_safetensors(os.path.join(folder, "model.safetensors"), values)
        with open(os.path.join(folder, "data.jsonl"), "w") as file:
            for prompt, completion in DOCUMENTS:
                file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")
        # Every step is an epoch: the same samples in any order, on any rank and in any micro-batch.
        for ranks, settings in [(1, {}), (2, {"zero_optimization": {"stage": 2}}), (2, {"pipeline": {"stages": 2}})]:
            actual = evaluate_dsat(os.path.abspath(sys.argv[1]), folder, ranks, settings)
            for mine, theirs in zip([*actual[1], actual[2]], [*losses, evaluated]):
                assert abs(mine - theirs) < 1e-4, (ranks, settings, actual[1:], losses, evaluated)
            for name, param in params.items():
                difference = (actual[0][name] - param.detach()).abs().max().item()
                assert difference < 1e-4, (ranks, settings, name, difference)


main()
