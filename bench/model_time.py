"""Compares the time of a step that is predicted for models of the built-in engine with real trials.

usage: model_time.py [--models 8] [--first-seed 1]

Draws models (GPT-2 or Llama, their sizes, f32 or bf16, one or two ranks, the accumulation), and has
`dsat grid` measure each at all ZeRO stages with several micro-batch sizes. Predictions are those
after the profiling trial, before any other one. Prints for each model the median of predicted /
measured, how many cells are within 5 %, and the rank correlation of the times per sample. The grid
runs twice: how many cells of the second run are within 5 % of the first one's says how well any
forecast could do on this machine.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile

from script_time import ranks

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZE = "/train_micro_batch_size_per_gpu"
SIZES = (1, 2, 4, 8)


def draw(seed):
    """Returns a line that describes the model, and the contents of its two files."""
    rng = random.Random(seed)
    heads = rng.choice([2, 4, 8])
    width, depth = heads * rng.choice([32, 48, 64]), rng.randint(2, 8)
    seq_len, kind = rng.choice([32, 64, 128, 192]), rng.choice(["gpt2", "llama"])
    bf16, slots, accumulation = rng.random() < 0.5, rng.choice([1, 2]), rng.choice([1, 2])
    model = {"type": "gpt2", "n_layer": depth, "n_embd": width, "n_head": heads,
             "n_positions": seq_len, "vocab_size": 256}
    if kind == "llama":
        model = {"type": "llama", "num_hidden_layers": depth, "hidden_size": width,
                 "intermediate_size": 3 * width, "num_attention_heads": heads,
                 "max_position_embeddings": seq_len, "vocab_size": 256}
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": accumulation,
              "bf16": {"enabled": bf16}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
              "zero_optimization": {"stage": rng.randint(0, 3), "overlap_comm": False}}
    fixed = {"/zero_optimization/reduce_bucket_size": [5e8],
             "/zero_optimization/allgather_bucket_size": [5e8],
             "/zero_optimization/overlap_comm": [False]}
    experiment = {"name": "drawn", "entrypoint": "builtin", "resources": {"slots_per_trial": slots},
                  "hyperparameters": {"deepspeed_config": "ds_config.json", "model": model,
                                      "data": {"type": "synthetic", "seq_len": seq_len,
                                               "vocab_size": 256}},
                  "search_space": {SIZE: SIZES, **fixed}}
    text = (f"{kind} {depth} x {width}, {seq_len} tokens, {'bf16' if bf16 else 'f32'}, "
            f"{slots} rank{'s'[:slots - 1]} x {accumulation}")
    return text, experiment, config


def run_grid(folder, database):
    """Returns predicted and measured ms per sample of each stage, micro-batch and accumulation."""
    dsat = os.environ.get("DSAT_PROGRAM", str(ROOT / "build/dsat"))
    with open(folder / "log", "w", encoding="utf-8") as log:
        subprocess.run([dsat, "grid", "experiment.yaml", "--zero-stages", "0", "1", "2", "3",
                        "--space", "published", "--train-batch-size", "any", "--confirm", "0",
                        "--max-trials", "18", "--db", database],
                       cwd=folder, stdout=log, stderr=log, check=True)
    shown = json.loads(subprocess.run([dsat, "show", "1", "--json", "--db", database], cwd=folder,
                                      stdout=subprocess.PIPE, check=True).stdout)
    predicted = {(place["stage"], forecast["micro_batch_size"], forecast["accumulation_steps"]):
                 sum(forecast[part] for part in ("compute_ms", "update_ms", "link_ms"))
                 for place in shown["space"]["stages"] for forecast in place["forecasts"]}
    times = {}
    for trial in shown["trials"]:
        size = trial["ds_config"]["train_micro_batch_size_per_gpu"]
        steps = trial["ds_config"].get("gradient_accumulation_steps", 1)
        cell = (trial["ds_config"]["zero_optimization"]["stage"], size, steps)
        if trial["kind"] != "search" or cell not in predicted or "latency" not in trial["metrics"]:
            continue
        times[cell] = [ms / size / steps
                       for ms in (predicted[cell], trial["metrics"]["latency"]["value"])]
    return times


def measure(experiment, config, folder):
    """Returns the predicted ms per sample of all cells, and those that two grids measured."""
    (folder / "experiment.yaml").write_text(json.dumps(experiment))
    (folder / "ds_config.json").write_text(json.dumps(config))
    first, second = run_grid(folder, "first.db"), run_grid(folder, "second.db")
    return [(*first[cell], second[cell][1]) for cell in first if cell in second]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=1)
    args = parser.parse_args()
    print(f"{'model':48} cells  predicted / measured  within 5 %  again within 5 %  rank corr.",
          flush=True)
    everything, all_again = [], 0
    for seed in range(args.first_seed, args.first_seed + args.models):
        text, experiment, config = draw(seed)
        with tempfile.TemporaryDirectory() as path:
            try:
                pairs = measure(experiment, config, pathlib.Path(path))
            except subprocess.CalledProcessError as error:
                raise SystemExit(f"{text}: {error}\n" +
                                 (pathlib.Path(path) / "log").read_text()[-2000:])
        ratios = [said / real for said, real, _ in pairs]
        everything += ratios
        near = sum(0.95 <= ratio <= 1.05 for ratio in ratios)
        again = sum(0.95 <= real / other <= 1.05 for _, real, other in pairs)
        all_again += again
        correlation = statistics.correlation(*(ranks(side) for side in list(zip(*pairs))[:2]))
        print(f"{text:48} {len(pairs):5}  {statistics.median(ratios):20.2f}  {near:10}  "
              f"{again:16}  {correlation:10.2f}", flush=True)
    tenths = statistics.quantiles(everything, n=10)
    near = sum(0.95 <= ratio <= 1.05 for ratio in everything)
    print(f"{'all':48} {len(everything):5}  {statistics.median(everything):20.2f}  {near:10}  "
          f"{all_again:16}\neight of ten cells: {tenths[0]:.2f} to {tenths[-1]:.2f}")


if __name__ == "__main__":
    main()
