"""Compares searches of scripts that start from a dry run with those that start from a launch.

usage: script_search.py [NAME ...]
       script_search.py --draws N [FIRST_SEED]

A device's memory is emulated on two CPU ranks: the bytes of all tensors (python/dsat/_memory.py)
have a hard limit, beyond which a rank ends as on a GPU. For each script and each way to find the
profile, prints the launches, those that ran out of memory, the launches and the seconds until the
first measurement and until 95 % of the best throughput of both searches. --draws makes N searches
that start from a dry run, with a drawn script, submitted size, bucket and limit, and counts the
launches that ran out of memory. Needs the Python of `scripts/setup --tests`; TRIALS is --max-trials
(default: 10), SEED is --random-seed.
"""
import json
import math
import os
import pathlib
import random
import sqlite3
import subprocess
import sys
import tempfile

from script_memory import BUCKETS, HERE, SCRIPTS, TRAINER, environment

# The arguments, and the limit of a device in MiB.
SEARCHED = {"cifar": (SCRIPTS["cifar"][0][1:], 24),
            "accelerate_loop": ([], 24),
            "hugging_face": (TRAINER, 100)}
# Further scripts of --draws, with what a device has to have for them.
DRAWN = {**SEARCHED, "lora_loop": ([], 24), "lightning_loop": ([], 24), "trl_sft": (
    [*TRAINER, "--bf16", "false"], 100)}
SIZE, BUCKET = 4, 20000
FREE = 0.97  # The part of the limit that is left beside a context.


def become_device():
    """Gives this rank of a measured trial the emulated memory."""
    if os.environ.get("DSAT_MEASURE") not in ("profile", "steps"):
        return
    import deepspeed
    from dsat import _meter
    from dsat._hook import engine
    from dsat._memory import MemoryTracker
    limit = float(os.environ["LIMIT_BYTES"])

    class Device(MemoryTracker):
        """Ends the process when its tensors exceed the limit."""
        most = 0

        def __torch_dispatch__(self, *args, **kwargs):
            result = super().__torch_dispatch__(*args, **kwargs)
            del self.curve[:], self.phases[:], self.work[:]
            Device.most = max(Device.most, sum(self._now))
            if Device.most > limit:
                print("torch.OutOfMemoryError: CUDA out of memory.", file=sys.stderr, flush=True)
                os._exit(1)
            return result
    device = Device()
    device.watch(lambda: None)
    device.watch_engines(deepspeed)
    device.__enter__()
    of_process = _meter.peak_memory
    _meter.peak_memory = lambda: {**of_process(), "peak_bytes": Device.most}
    _meter.memory_in_use = engine.memory_in_use = lambda: sum(device._now)


def write_files(folder, name, limit, size, bucket):
    arguments = DRAWN[name][0]
    script = (HERE / "scripts" / f"{name}.py").read_text()
    (folder / "train.py").write_text(
        f"import sys\nsys.path.append({str(HERE)!r})\nimport script_search\n"
        f"script_search.become_device()\n{script}")
    config = {"train_micro_batch_size_per_gpu": size, "gradient_accumulation_steps": 1,
              "zero_optimization": {"stage": 2, **BUCKETS, "reduce_bucket_size": bucket}}
    if SCRIPTS[name][1]:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3}}
    (folder / "ds_config.json").write_text(json.dumps(config))
    words = " ".join(word.replace("{size}", str(size)) for word in arguments)
    (folder / "experiment.yaml").write_text(
        f"name: {name}\n"
        f"entrypoint: {sys.executable} -m torch.distributed.run --nproc_per_node 2 train.py "
        f"{words.replace('--max_steps 3', '--max_steps 300')}\n"
        f"environment: {{environment_variables: [LIMIT_BYTES={FREE * limit * 2 ** 20:.0f}]}}\n"
        f"resources: {{slots_per_trial: 2, device_memory: {limit}MiB}}\n"
        "hyperparameters: {deepspeed_config: ds_config.json}\n"
        # On a CPU dsat counts no part of a bucket that is never touched, and the limit does; and
        # what is offloaded stays in the memory that is limited.
        "search_space:\n"
        f"  /zero_optimization/reduce_bucket_size: [{bucket}, {3 * bucket}]\n"
        "  /zero_optimization/offload_optimizer/device: [none]\n"
        "  /zero_optimization/offload_param/device: [none]\n")


def trials_of(way, name, limit, size=SIZE, bucket=BUCKET, seed=os.environ.get("SEED", "1")):
    """The trials of a search, as `dsat show --json` has them; prints how it ended."""
    dsat = os.environ.get("DSAT_PROGRAM", str(HERE.parent / "build/dsat"))
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        write_files(folder, name, limit, size, bucket)
        with open(folder / "log", "w", encoding="utf-8") as log:
            code = subprocess.run(
                [dsat, "auto", "experiment.yaml", "--out", "out", "--db", "search.db", "--metric",
                 "throughput", "--confirm", "0", "--train-batch-size", "any", "--profile", way,
                 "--max-trials", os.environ.get("TRIALS", "10"), "--random-seed", str(seed)],
                cwd=folder, env=environment(), stdout=log, stderr=log, check=False).returncode
        if code != 0:
            raise RuntimeError((folder / "log").read_text()[-2000:])
        shown = subprocess.run([dsat, "show", "1", "--json", "--db", "search.db"], cwd=folder,
                               stdout=subprocess.PIPE, check=True)
        trials = json.loads(shown.stdout)["trials"]
        with sqlite3.connect(folder / "search.db") as log:
            told = dict(log.execute("SELECT trial, payload FROM events WHERE kind = 'told'"))
        return [{**trial, "ended_s": json.loads(told[trial["id"]]).get("ended_s", 0)}
                for trial in trials]


def throughput(trial):
    return ((trial.get("metrics") or {}).get("throughput") or {}).get("value", 0)


def launched_of(trials, way):
    """The trials that were launched: a dry run launches nothing."""
    return trials if way == "measure" else trials[1:]


def misfits_of(trials):
    return sum(trial["state"] == "infeasible" for trial in trials)


def draw(searches, first_seed):
    """Prints the launches of drawn searches and those that ran out of memory."""
    launches = misfits = 0
    for seed in range(first_seed, first_seed + searches):
        drawn = random.Random(seed)
        name = drawn.choice(list(DRAWN))
        limit = round(DRAWN[name][1] * math.exp(drawn.uniform(math.log(0.6), math.log(4))))
        size, bucket = drawn.choice([1, 2, 3, 4, 6, 8]), drawn.choice([20000, 50000, 100000])
        case = f"{seed:6} {name:16} {limit:4} MiB, micro-batch {size}, buckets {bucket:6}: "
        try:
            trials = launched_of(trials_of("dry-run", name, limit, size, bucket, seed), "dry-run")
        except RuntimeError as error:
            print(f"{case}no answer: {str(error).strip().splitlines()[-1]}", flush=True)
            continue
        launches, misfits = launches + len(trials), misfits + misfits_of(trials)
        print(f"{case}{len(trials)} launches, {misfits_of(trials)} without memory "
              f"{sizes_of(trials)}; in all {launches}, {misfits}", flush=True)


def sizes_of(trials):
    return [(trial["ds_config"]["train_micro_batch_size_per_gpu"], trial["state"][:6],
             round(throughput(trial))) for trial in trials]


def main():
    if sys.argv[1:2] == ["--draws"]:
        draw(*map(int, [*sys.argv[2:], "1"][:2]))
        return
    print(f"{'script':16} {'profile':8} launches  no memory  first, s  to 95 % of the best, s")
    for name in sys.argv[1:] or SEARCHED:
        ways = {way: trials_of(way, name, SEARCHED[name][1]) for way in ("measure", "dry-run")}
        best = max(throughput(trial) for trials in ways.values() for trial in trials)
        for way, trials in ways.items():
            launched = launched_of(trials, way)
            first = next(trial for trial in trials if throughput(trial) > 0)
            good = [at for at, trial in enumerate(launched) if throughput(trial) > 0.95 * best]
            until = f"{1 + good[0]:3} {launched[good[0]]['ended_s']:9.0f}" if good else "  never"
            print(f"{name:16} {way:8} {len(launched):8} {misfits_of(launched):10} "
                  f"{first['ended_s']:9.0f} {until}\n    {sizes_of(launched)}", flush=True)


if __name__ == "__main__":
    main()
