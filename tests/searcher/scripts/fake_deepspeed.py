"""Behaves as a training script with DeepSpeed's autotuning hooks does, or as one that goes wrong.

usage: fake_deepspeed.py --behave HOW --deepspeed_config FILE [...]
"""
import json
import os
import sys
import time


def value_of(flag, otherwise=None):
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else otherwise


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
    """Prints the line of a step, and returns when dsat has noted its time: a busy machine would
    note the same time for several lines otherwise."""
    step_line.printed += 1
    print("[Rank 0] time (ms) | fwd: 1.50 | bwd: 2.25 | bwd_inner: 2.00 | step: %.2f" % step_ms)
    stamps = os.readlink("/proc/self/fd/1") + ".stamps"
    while os.path.exists(stamps) and open(stamps).read().count("\n") < step_line.printed:
        time.sleep(0.001)


step_line.printed = 0


def mark(rank):
    """A file that each launch has anew, because it has a port of its own."""
    return "%s/done-%s-%d" % (os.environ["DSAT_TRIAL_DIR"], os.environ["MASTER_PORT"], rank)


def wait_for(rank):
    while not os.path.exists(mark(rank)):
        time.sleep(0.001)


how = value_of("--behave")
config = json.load(open(value_of("--deepspeed_config", os.environ["DSAT_DS_CONFIG"])))
rank = int(os.environ.get("RANK", "0"))
hooks = config.get("autotuning", {})
micro_batch = config["train_micro_batch_size_per_gpu"]
accumulation = config.get("gradient_accumulation_steps", 1)
data_parallel = 1 if how == "pipeline" else int(os.environ.get("WORLD_SIZE", "2"))
batch = config.get("train_batch_size") or data_parallel * micro_batch * accumulation
print("rank", rank, "of", os.environ.get("WORLD_SIZE"), "trial", os.environ["DSAT_TRIAL_ID"])

def report(**more):
    """Writes what dsat's import hook writes."""
    ran = {"train_micro_batch_size_per_gpu": micro_batch, "zero_stage": 0,
           "gradient_accumulation_steps": accumulation, "train_batch_size": batch,
           "reduce_bucket_size": 1000, "allgather_bucket_size": 500000000,
           "data_parallel_size": data_parallel}
    text = {"config_applied": True, "engine": "DeepSpeedEngine", "ran": ran, "losses": [2.5 + rank / 2, 2.0 + rank / 2],
            "peak_bytes": 5 << 30 if rank == 1 else 1 << 30, "host_bytes": (1 + rank) << 30,
            "num_alloc_retries": rank,
            "data_wait_share": 0.25}
    text["ran"].update(more.pop("ran", {}))
    text.update(more)
    write(os.environ["DSAT_TRIAL_DIR"] + "/hook-rank%d.json" % rank, text)


if how in ("hook", "pipeline"):
    report()
if how == "hook-rewrites":
    report(ran={"train_micro_batch_size_per_gpu": micro_batch - 1, "zero_stage": 3})
if how == "hook-one-rank":
    report(world_size=1)
if how == "hook-nan":
    report(losses=[2.5, float("nan")])
if how == "hook-small-batches":
    report(forward_batch_sizes=[1, micro_batch - 1])
if how == "dump-rewrites":
    print("[2026-01-01] [INFO] [config.py:678:print]   gradient_accumulation_steps .. 1")
    print("[2026-01-01] [INFO] [config.py:678:print]   train_micro_batch_size_per_gpu  4")
    print("[2026-01-01] [INFO] [config.py:678:print]   zero_config .......... stage=0 "
          "reduce_scatter=True reduce_bucket_size=7 allgather_bucket_size=500000000")
if how == "shared-buffers":
    for port in (os.environ["MASTER_PORT"], "1"):
        name = "/dev/shm/deepspeed_allreduce_buffer_%d_127.0.0.1_%s_%d"
        open(name % (os.getuid(), port, rank), "w").write("buffer")
if how == "oom" and rank == 1:
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", file=sys.stderr)
    open(mark(1), "w").close()
    sys.exit(1)
if how == "oom" and rank == 0:
    wait_for(1)
    sys.exit("RuntimeError: Connection reset by peer")
if how == "config":
    sys.exit("AssertionError: Check batch related parameters. train_batch_size is not equal")
if how == "crash":
    sys.exit("ValueError: a bug in the script")
if how == "port":
    sys.exit("RuntimeError: The server socket has failed to listen: EADDRINUSE")
if how == "hang":
    time.sleep(600)
if how == "pipe":  # Its exit code is that of another command.
    print("Traceback (most recent call last):\nValueError: a bug in the script\nbye")
if how in ("never", "pipe"):
    sys.exit(0)
if not hooks.get("enabled"):
    print("full run with", sorted(config))
    sys.exit(0)
if rank != 0:
    open(mark(rank), "w").close()
    sys.exit(0)

if hooks.get("model_info", {}).get("profile"):
    info = {"num_params": 10 if how == "impossible-profile" else 1000, "trainable_num_params": 900,
            "activation_mem_per_gpu": 8 << 20, "rank": 0}
    write(hooks["model_info_path"], info)
    sys.exit(0)

for step in range(2 if how == "short" else hooks["end_profile_step"]):
    time.sleep(0.02)
    step_line(4.0 + step)
    if how == "log-losses":
        print("{'loss': %.1f, 'epoch': 0.1}" % (3 - step / 10))
if how == "no-result":
    step_line(4.0)
    step_line(4.0)
if how in ("short", "no-result"):
    sys.exit(0)
if how == "garbage":
    with open(hooks["metric_path"], "wb") as file:
        file.write(b"0.25 s\n\xff")
    sys.exit(0)
if how == "ignores-config":
    batch += 8

fwd, bwd, step = 1000.0, 2000.0, 3000.0
latency = (fwd + bwd + step) * accumulation
metrics = {"fwd": fwd, "bwd": bwd, "step": step, "latency": latency, "FLOPS_per_gpu": 1e9,
           "throughput": batch * 1e6 / latency, "rank": 0}
if how == "log-nan":
    print("{'loss': 2.5, 'epoch': 0.1}\n{'loss': nan, 'epoch': 0.2}")
print("epoch=0/micro_step=6/global_step=6, MemAllocated=0.25GB, MaxMemAllocated=1.5GB")
for other in range(1, int(os.environ.get("WORLD_SIZE", "2"))):
    wait_for(other)  # dsat stops the ranks as soon as there is a result.
write(hooks["metric_path"], metrics, slowly=how == "slow-file")
if how == "swallows-exit":
    time.sleep(600)
if how == "bad-code":
    sys.exit(9)
