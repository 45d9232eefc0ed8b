"""Compares the time of a step that a dry run predicts for scripts with that of real trials.

usage: script_time.py [--pairs FILE] [NAME ...]

For each script, `dsat grid` measures all ZeRO stages with several micro-batch sizes on two CPU
ranks. Predictions are those of the dry run that the search starts with (compute, update and link),
times one factor that makes the submitted configuration's right. Prints for each script the median
error, the rank correlation of the times per sample, and how much slower than the best of the grid
the configuration is that was predicted to be the best. Needs the Python of `scripts/setup --tests`.
The pairs of predicted and measured ms go to FILE.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from script_memory import BUCKETS, HERE, SCRIPTS, TRAINER, environment

LONG = [word.replace("3", "300") if word == "3" else word for word in TRAINER]
ARGUMENTS = {"cifar": SCRIPTS["cifar"][0][1:], "lora_loop": [], "accelerate_loop": [],
             "lightning_loop": [], "hugging_face": LONG, "trl_sft": [*LONG, "--bf16", "false"]}
SIZES, SUBMITTED, STAGE = (2, 4, 8, 16, 32), 4, 2
SIZE = "/train_micro_batch_size_per_gpu"


def measure(name, folder):
    """Runs the grid. Returns predicted and measured ms by (stage, micro-batch size)."""
    (folder / "train.py").write_text((HERE / "scripts" / f"{name}.py").read_text())
    config = {"train_micro_batch_size_per_gpu": SUBMITTED, "gradient_accumulation_steps": 1,
              "zero_optimization": {"stage": STAGE, "overlap_comm": False, **BUCKETS}}
    if SCRIPTS[name][1]:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    (folder / "ds_config.json").write_text(json.dumps(config))
    words = " ".join(word.replace("{size}", str(SUBMITTED)) for word in ARGUMENTS[name])
    fixed = {f"/zero_optimization/{key}": [value] for key, value in BUCKETS.items()}
    fixed.update({f"/zero_optimization/{key}": [value] for key, value in (
        ("overlap_comm", False), ("reduce_scatter", True), ("contiguous_gradients", True),
        ("allgather_partitions", True), ("stage3_max_live_parameters", 10 ** 9),
        ("stage3_max_reuse_distance", 10 ** 9), ("sub_group_size", 10 ** 9))})
    (folder / "experiment.yaml").write_text(
        f"name: {name}\n"
        f"entrypoint: {sys.executable} -m torch.distributed.run --nproc_per_node 2 train.py {words}\n"
        "resources: {slots_per_trial: 2}\n"
        "hyperparameters: {deepspeed_config: ds_config.json}\n"
        f"search_space: {json.dumps({SIZE: list(SIZES), **fixed})}\n")
    dsat = os.environ.get("DSAT_PROGRAM", str(HERE.parent / "build/dsat"))
    with open(folder / "log", "w", encoding="utf-8") as log:
        subprocess.run([dsat, "grid", "experiment.yaml", "--zero-stages", "0", "1", "2", "3",
                        "--space", "published", "--confirm", "0", "--metric", "throughput",
                        "--train-batch-size", "any", "--db", "time.db"], cwd=folder,
                       env=environment(), stdout=log, stderr=log, check=True)
    shown = json.loads(subprocess.run([dsat, "show", "1", "--json", "--db", "time.db"], cwd=folder,
                                      stdout=subprocess.PIPE, check=True).stdout)
    predicted = {(place["stage"], forecast["micro_batch_size"]):
                 sum(forecast[part] for part in ("compute_ms", "update_ms", "link_ms"))
                 for place in shown["space"]["stages"] for forecast in place["forecasts"]
                 if forecast["accumulation_steps"] == 1}
    return [[*cell, predicted[cell], trial["metrics"]["latency"]["value"]]
            for trial in shown["trials"] if "latency" in (trial.get("metrics") or {})
            for cell in [(trial["ds_config"]["zero_optimization"]["stage"],
                          trial["ds_config"]["train_micro_batch_size_per_gpu"])]]


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    return [order.index(at) for at in range(len(values))]


def judge(name, rows):
    """Prints how good the predictions are, and returns their errors."""
    scale = next(real / said for stage, size, said, real in rows
                 if (stage, size) == (STAGE, SUBMITTED))
    others = [row for row in rows if row[:2] != [STAGE, SUBMITTED]]
    errors = [abs(scale * said / real - 1) for _, _, said, real in others]
    said, real = ([row[at] / row[1] for row in rows] for at in (2, 3))
    correlation = statistics.correlation(ranks(said), ranks(real))
    slower = real[said.index(min(said))] / min(real) - 1
    print(f"{name:16} {len(rows):5} {100 * statistics.median(errors):9.1f} %  {correlation:9.3f} "
          f"{100 * slower:13.1f} %", flush=True)
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=list(ARGUMENTS))
    args = parser.parse_args()
    print("script           cells  median error  rank corr.  pick is slower", flush=True)
    errors, pairs = [], {}
    for name in args.names:
        with tempfile.TemporaryDirectory() as path:
            try:
                pairs[name] = measure(name, pathlib.Path(path))
            except (subprocess.CalledProcessError, KeyError) as error:
                raise SystemExit(f"{name}: {error}\n" + (pathlib.Path(path) / "log").read_text()[-2000:])
        errors += judge(name, pairs[name])
        if args.pairs:
            args.pairs.write_text(json.dumps(pairs))
    print(f"all              {len(errors):5} {100 * statistics.median(errors):9.1f} %")


if __name__ == "__main__":
    main()
