"""Trains GPT-2 as one rank of PyTorch with DeepSpeed on the CPU: the peer of cpu_training.py.

usage: deepspeed_gpt2.py TASK.json

The task is that of dsat-trial; DeepSpeed gets its ds_config unchanged. Rank 0 prints the
milliseconds of each measured step as one JSON line.
"""
import json
import os
import sys
import time

import deepspeed
import torch

from torch_gpt2 import Gpt2


def main():
    with open(sys.argv[1]) as file:
        task = json.load(file)
    rank = int(os.environ["RANK"])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(rank)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = Gpt2(task["model"])
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=task["ds_config"])
    config = task["ds_config"]
    batch = (config["train_micro_batch_size_per_gpu"], task["data"]["seq_len"] + 1)
    times = []
    for step in range(task["end_profile_step"] + 1):
        before = time.perf_counter()
        for _ in range(config.get("gradient_accumulation_steps", 1)):
            text = torch.randint(task["model"]["vocab_size"], batch)
            loss = engine(text[:, :-1].contiguous(), text[:, 1:].contiguous())
            engine.backward(loss)
            engine.step()
        if step >= task["start_profile_step"]:
            times.append(1e3 * (time.perf_counter() - before))
    if rank == 0:
        print(json.dumps({"step_ms": times, "loss": loss.item()}), flush=True)


if __name__ == "__main__":
    main()
