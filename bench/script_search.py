"""Compares searches of scripts that start from a dry run with those that start from a launch.

usage: script_search.py [NAME ...]

A device's memory is emulated on two CPU ranks: the bytes of all tensors (python/dsat/_memory.py)
have a hard limit, beyond which a rank ends as on a GPU. For each script and each way to find the
profile, prints the launches, those that ran out of memory, the launches and the seconds until the
first measurement and until 95 % of the best throughput of both searches. Needs the Python of
`scripts/setup --tests`; TRIALS is --max-trials (default: 10), SEED is --random-seed.
"""
import json
import os
import pathlib
import sqlite3
import subprocess
import sys
import tempfile

from script_memory import BUCKETS, HERE, SCRIPTS, TRAINER, environment

# The arguments, and the limit of a device in MiB.
SEARCHED = {"cifar": (SCRIPTS["cifar"][0][1:], 24),
            "accelerate_loop": ([], 24),
            "hugging_face": (TRAINER, 100)}
SIZE = 4
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


def write_files(folder, name):
    arguments, limit = SEARCHED[name]
    script = (HERE / "scripts" / f"{name}.py").read_text()
    (folder / "train.py").write_text(
        f"import sys\nsys.path.append({str(HERE)!r})\nimport script_search\n"
        f"script_search.become_device()\n{script}")
    config = {"train_micro_batch_size_per_gpu": SIZE, "gradient_accumulation_steps": 1,
              "zero_optimization": {"stage": 2, **BUCKETS, "reduce_bucket_size": 20000}}
    if SCRIPTS[name][1]:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3}}
    (folder / "ds_config.json").write_text(json.dumps(config))
    words = " ".join(word.replace("{size}", str(SIZE)) for word in arguments)
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
        "  /zero_optimization/reduce_bucket_size: [20000, 60000]\n"
        "  /zero_optimization/offload_optimizer/device: [none]\n"
        "  /zero_optimization/offload_param/device: [none]\n")


def trials_of(name, way):
    """The trials of a search, as `dsat show --json` has them; prints how it ended."""
    dsat = os.environ.get("DSAT_PROGRAM", str(HERE.parent / "build/dsat"))
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        write_files(folder, name)
        with open(folder / "log", "w", encoding="utf-8") as log:
            code = subprocess.run(
                [dsat, "auto", "experiment.yaml", "--out", "out", "--db", "search.db", "--metric",
                 "throughput", "--confirm", "0", "--train-batch-size", "any", "--profile", way,
                 "--max-trials", os.environ.get("TRIALS", "10"), "--random-seed",
                 os.environ.get("SEED", "1")], cwd=folder, env=environment(), stdout=log,
                stderr=log, check=False).returncode
        if code != 0:
            raise SystemExit((folder / "log").read_text()[-2000:])
        shown = subprocess.run([dsat, "show", "1", "--json", "--db", "search.db"], cwd=folder,
                               stdout=subprocess.PIPE, check=True)
        trials = json.loads(shown.stdout)["trials"]
        with sqlite3.connect(folder / "search.db") as log:
            told = dict(log.execute("SELECT trial, payload FROM events WHERE kind = 'told'"))
        return [{**trial, "ended_s": json.loads(told[trial["id"]]).get("ended_s", 0)}
                for trial in trials]


def throughput(trial):
    return ((trial.get("metrics") or {}).get("throughput") or {}).get("value", 0)


def main():
    print(f"{'script':16} {'profile':8} launches  no memory  first, s  to 95 % of the best, s")
    for name in sys.argv[1:] or SEARCHED:
        ways = {way: trials_of(name, way) for way in ("measure", "dry-run")}
        best = max(throughput(trial) for trials in ways.values() for trial in trials)
        for way, trials in ways.items():
            launched = trials if way == "measure" else trials[1:]
            first = next(trial for trial in trials if throughput(trial) > 0)
            good = [at for at, trial in enumerate(launched) if throughput(trial) > 0.95 * best]
            until = f"{1 + good[0]:3} {launched[good[0]]['ended_s']:9.0f}" if good else "  never"
            print(f"{name:16} {way:8} {len(launched):8} "
                  f"{sum(trial['state'] == 'infeasible' for trial in launched):10} "
                  f"{first['ended_s']:9.0f} {until}", flush=True)
            print("   ", [(trial["ds_config"]["train_micro_batch_size_per_gpu"], trial["state"][:6],
                           round(throughput(trial))) for trial in launched], flush=True)


if __name__ == "__main__":
    main()
