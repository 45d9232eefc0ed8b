"""Trains GPT-2 on one GPU with PyTorch and torch.compile: the peer of gpu_training.py.

usage: compiled_gpt2.py TASK.json

The task is that of dsat-trial. As is usual for GPT-2 in PyTorch, parameters are f32, matrix
multiplication is bf16 (autocast), attention is PyTorch's fastest, and AdamW is fused. Prints the
milliseconds of each measured step and the peak of reserved bytes as one JSON line. Exits with 3 if
the GPU runs out of memory.
"""
import contextlib
import json
import sys
import time

import torch

from dsat_trial import OUT_OF_MEMORY
from torch_gpt2 import Gpt2


def train(task, device):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    config = task["ds_config"]
    micro_batch = config["train_micro_batch_size_per_gpu"]
    accumulation = config.get("gradient_accumulation_steps", 1)
    model = torch.compile(Gpt2(task["model"]).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["optimizer"]["params"]["lr"],
                                  fused=device == "cuda")
    half = config.get("bf16", {}).get("enabled", False)
    precision = torch.autocast(device, torch.bfloat16) if half else contextlib.nullcontext()
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for step in range(task["end_profile_step"] + 1):
        wait()
        before = time.perf_counter()
        for _ in range(accumulation):
            shape = (micro_batch, task["data"]["seq_len"] + 1)
            text = torch.randint(task["model"]["vocab_size"], shape, device=device)
            with precision:
                loss = model(text[:, :-1].contiguous(), text[:, 1:].contiguous()) / accumulation
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config["gradient_clipping"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        if step >= task["start_profile_step"]:
            times.append(1e3 * (time.perf_counter() - before))
    peak = torch.cuda.max_memory_reserved() if device == "cuda" else 0
    return {"step_ms": times, "loss": loss.item() * accumulation, "peak_bytes": peak}


def main():
    with open(sys.argv[1]) as file:
        task = json.load(file)
    try:
        print(json.dumps(train(task, task["device"])), flush=True)
    except torch.OutOfMemoryError as error:
        print(error, file=sys.stderr)
        sys.exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
