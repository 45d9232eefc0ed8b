"""Behaves as a training script with DeepSpeed's autotuning hooks does, or as one that goes wrong.

usage: fake_deepspeed.py --behave HOW --deepspeed_config FILE [...]
"""
import json
import os
import sys
import time


def value_of(flag):
    return sys.argv[sys.argv.index(flag) + 1]


def write(path, value, slowly=False):
    text = json.dumps(value)
    with open(path, "w") as file:  # In place, as DeepSpeed does.
        if slowly:
            file.write(text[: len(text) // 2])
            file.flush()
            time.sleep(0.3)
            text = text[len(text) // 2 :]
        file.write(text)


def step_line(step_ms):
    print("[Rank 0] time (ms) | fwd: 1.50 | bwd: 2.25 | bwd_inner: 2.00 | step: %.2f" % step_ms)


how = value_of("--behave")
config = json.load(open(value_of("--deepspeed_config")))
rank = int(os.environ.get("RANK", "0"))
hooks = config.get("autotuning", {})
accumulation = config["gradient_accumulation_steps"]
batch = config["train_batch_size"]
print("rank", rank, "of", os.environ.get("WORLD_SIZE"), "trial", os.environ["DSAT_TRIAL_ID"])

if how == "oom" and rank == 1:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
if how == "oom" and rank == 0:
    time.sleep(0.2)
    sys.exit("RuntimeError: Connection reset by peer")
if how == "config":
    sys.exit("AssertionError: Check batch related parameters. train_batch_size is not equal")
if how == "crash":
    sys.exit("ValueError: a bug in the script")
if how == "port":
    sys.exit("RuntimeError: The server socket has failed to listen: EADDRINUSE")
if how == "hang":
    time.sleep(600)
if how == "never":
    sys.exit(0)
if not hooks.get("enabled"):
    print("full run with", sorted(config))
    sys.exit(0)
if rank != 0:
    sys.exit(0)

if hooks.get("model_info", {}).get("profile"):
    info = {"num_params": 1000, "trainable_num_params": 900,
            "activation_mem_per_gpu": 8 << 20, "rank": 0}
    write(hooks["model_info_path"], info)
    sys.exit(0)

for step in range(2 if how == "short" else hooks["end_profile_step"]):
    time.sleep(0.02)
    step_line(4.0 + step)
if how == "short":
    sys.exit(0)
if how == "ignores-config":
    batch += 8

fwd, bwd, step = 1000.0, 2000.0, 3000.0
latency = (fwd + bwd + step) * accumulation
metrics = {"fwd": fwd, "bwd": bwd, "step": step, "latency": latency, "FLOPS_per_gpu": 1e9,
           "throughput": batch * 1e6 / latency, "rank": 0}
print("epoch=0/micro_step=6/global_step=6, MemAllocated=0.25GB, MaxMemAllocated=1.5GB")
write(hooks["metric_path"], metrics, slowly=how == "slow-file")
if how == "swallows-exit":
    time.sleep(600)
if how == "bad-code":
    sys.exit(9)
