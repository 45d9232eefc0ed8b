"""Trains a small model with DeepSpeed, and fails in its third step as its first argument says.

usage: failing_train.py HOW --deepspeed_config ds_config.json
"""
import os
import resource
import sys
import time

how, config = sys.argv[1], sys.argv[-1]
if how == "import":
    import a_module_that_is_not_there

import deepspeed
import torch


def fail():
    if how == "exception" and engine.global_rank == 1:
        raise ValueError("sample 7 is broken")
    if how == "hang":
        time.sleep(1000)
    if how == "memory":
        with open("/proc/self/statm", encoding="ascii") as file:
            in_use = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 29), resource.RLIM_INFINITY))
        torch.zeros(1 << 30, dtype=torch.uint8)
    if how == "garbage":
        with open(os.environ["DSAT_TRIAL_DIR"] + "/hook-rank0.json", "w", encoding="ascii") as file:
            file.write("0.25 s per step\n")
        os._exit(0)  # PyTorch may abort a process that ends with a process group.


model = torch.nn.Linear(16, 16)
engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
for step in range(20):
    loss = engine(torch.ones(4, 16, device=engine.device)).square().mean()
    engine.backward(loss * float("nan") if how == "nan" else loss)
    if step == 2:
        fail()
    try:
        engine.step()
    except SystemExit:
        if how != "swallow":
            raise
        time.sleep(1000)
