"""Behaves as a training script that dsat's import hook measures, or as one that goes wrong.

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
    with open(path + ".tmp" if not slowly else path, "w") as file:
        if slowly:
            file.write(text[: len(text) // 2])
            file.flush()
            time.sleep(0.3)
            text = text[len(text) // 2 :]
        file.write(text)
    if not slowly:
        os.replace(path + ".tmp", path)


def mark(rank):
    """A file that each launch has anew, because it has a port of its own."""
    return "%s/done-%s-%d" % (os.environ["DSAT_TRIAL_DIR"], os.environ.get("MASTER_PORT"), rank)


def wait_for(rank):
    while not os.path.exists(mark(rank)):
        time.sleep(0.001)


how = value_of("--behave")
config = json.load(open(value_of("--deepspeed_config", os.environ["DSAT_DS_CONFIG"])))
rank = int(os.environ.get("RANK", "0"))
measure = os.environ.get("DSAT_MEASURE")
micro_batch = config["train_micro_batch_size_per_gpu"]
accumulation = config.get("gradient_accumulation_steps", 1)
data_parallel = 1 if how == "pipeline" else int(os.environ.get("WORLD_SIZE", "1"))
batch = config.get("train_batch_size") or data_parallel * micro_batch * accumulation
print("rank", rank, "of", os.environ.get("WORLD_SIZE"), "trial", os.environ["DSAT_TRIAL_ID"])

content = {}


def report(slowly=False, **more):
    """Writes what dsat's import hook writes."""
    content.update(more)
    write(os.environ["DSAT_TRIAL_DIR"] + "/hook-rank%d.json" % rank, content, slowly)


def begin(**ran):
    """Writes what the hook writes of an engine, and the result without the times of the steps."""
    ran = {"train_micro_batch_size_per_gpu": micro_batch, "zero_stage": 0,
           "gradient_accumulation_steps": accumulation, "train_batch_size": batch,
           "reduce_bucket_size": 1000, "allgather_bucket_size": 500000000,
           "data_parallel_size": data_parallel, **ran}
    report(config_applied=True, engine="DeepSpeedEngine", ran=ran,
           losses=[2.5 + rank / 2, 2.0 + rank / 2],
           peak_bytes=5 << 30 if rank == 1 else 1 << 30, host_bytes=(1 + rank) << 30,
           num_alloc_retries=rank, data_wait_share=0.25)


if how.startswith(("hook", "pipeline")):
    begin()
if how == "hook-rewrites":
    begin(train_micro_batch_size_per_gpu=micro_batch - 1, zero_stage=3)
if how == "hook-one-rank":
    report(world_size=1)
if how == "hook-nan":
    report(losses=[2.5, float("nan")])
if how == "hook-small-batches":
    report(forward_batch_sizes=[1, micro_batch - 1])
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
if not measure:
    print("full run with", sorted(config))
    sys.exit(0)
if rank != 0:
    open(mark(rank), "w").close()
    sys.exit(0)

if measure == "profile":
    num_params = 10 if how == "impossible-profile" else 1000
    report(profile={"num_params": num_params, "trainable_num_params": 900,
                    "activation_bytes_per_sample": 2 << 20})
    sys.exit(0)

first = int(os.environ["DSAT_START_PROFILE_STEP"]) + 1
steps = int(os.environ["DSAT_END_PROFILE_STEP"]) + 1
for step in range(2 if how == "short" else steps):
    time.sleep(0.005)
    report(num_steps=step + 1)
    if how == "log-losses":
        print("{'loss': %.1f, 'epoch': 0.1}" % (3 - step / 10))
if how == "no-result":
    report(num_steps=steps + 1)
if how in ("short", "no-result"):
    sys.exit(0)
if how == "garbage":
    with open(os.environ["DSAT_TRIAL_DIR"] + "/hook-rank0.json", "wb") as file:
        file.write(b"0.25 s\n\xff")
    sys.exit(0)
if how == "ignores-config":
    batch += 8
if how == "log-nan":
    print("{'loss': 2.5, 'epoch': 0.1}\n{'loss': nan, 'epoch': 0.2}")
for other in range(1, int(os.environ.get("WORLD_SIZE", "1"))):
    wait_for(other)  # dsat stops the ranks as soon as there is a result.
counted = range(first, steps)
report(samples=batch, flops=1.8e7, first_counted_step=first,
       step_seconds=[0 if how == "no-time" else 0.018 for step in counted],
       forward_seconds=[0.0015 for step in counted], backward_seconds=[0.00225 for step in counted],
       update_seconds=[(4 + step) / 1000 for step in counted], slowly=how == "slow-file")
if how == "swallows-exit":
    time.sleep(600)
if how == "bad-code":
    sys.exit(9)
