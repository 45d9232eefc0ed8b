#!/usr/bin/env python3
"""Measures every configuration of a small space with the built-in engine on two processor ranks.

usage: bench/record_surface.py [--build BUILD] [--rounds 6] [--out bench/recorded_surface.json]

Each round runs `dsat grid` over all ZeRO stages once for each micro-batch size and setting of the
knobs. The file has the experiment, the model's profile and a row for each launch; search_quality
replays them (family recorded-cpu), so that times and the noise between launches are real ones.
Sizes that a stage lacks need more than the device memory. Run it on an idle machine.
"""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

from dsat_trial import BUILD, build_folder, interrupt_on_sigterm, positive

ROOT = pathlib.Path(__file__).resolve().parent.parent
ZERO = "/zero_optimization/"
KNOBS = {ZERO + "reduce_bucket_size": [500_000, 2_000_000],
         ZERO + "overlap_comm": [True, False]}
SIZE = "/train_micro_batch_size_per_gpu"
SIZES = [2, 6, 16]
FIXED = {ZERO + "allgather_bucket_size": [500_000], ZERO + "reduce_scatter": [True],
         ZERO + "contiguous_gradients": [True]}
EXPERIMENT = {
    "name": "recorded-cpu", "entrypoint": "builtin",
    "resources": {"slots_per_trial": 2, "device_memory": "128MiB"},
    "searcher": {"name": "single", "max_length": {"batches": 30}},
    "hyperparameters": {
        "deepspeed_config": "ds_config.json",
        "model": {"type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 64,
                  "vocab_size": 256},
        "data": {"type": "text", "path": "/usr/share/common-licenses", "seq_len": 64}}}
COLUMNS = ["zero_stage", "micro_batch_size", "reduce_bucket_size", "overlap_comm", "latency_ms",
           "latency_spread_ms", "forward_ms", "backward_ms", "step_ms", "peak_bytes", "seconds"]


def dsat(build, folder, *args):
    return subprocess.run([build / "dsat", *args, "--db", "record.db"], cwd=folder, text=True,
                          check=True, stdout=subprocess.PIPE).stdout


def record(build, folder, size, bucket, overlap):
    """The rows of one setting, and the experiment and the profile that they are of."""
    space = {ZERO + "reduce_bucket_size": [bucket], ZERO + "overlap_comm": [overlap], SIZE: [size],
             **FIXED}
    ds_config = {"train_micro_batch_size_per_gpu": size, "gradient_accumulation_steps": 1,
                 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                 "zero_optimization": {"stage": 1, "allgather_bucket_size": 500_000,
                                       "reduce_bucket_size": bucket, "overlap_comm": overlap}}
    (folder / "experiment.yaml").write_text(json.dumps({**EXPERIMENT, "search_space": space}))
    (folder / "ds_config.json").write_text(json.dumps(ds_config))
    (folder / "record.db").unlink(missing_ok=True)
    dsat(build, folder, "grid", "experiment.yaml", "--zero-stages", "0", "1", "2", "3",
         "--space", "published", "--confirm", "0", "--max-concurrent-trials", "1",
         "--metric", "throughput")
    query = lambda text: json.loads(dsat(build, folder, "query", "--json", text))
    rows = query("SELECT t.zero_stage, p.*, 86400 * (julianday(a.ended_at) - "
                 "julianday(a.started_at)) AS seconds FROM points AS p JOIN trials AS t ON "
                 "t.id = p.trial JOIN attempts AS a ON a.trial = p.trial WHERE t.kind <> 'profile'")
    spec = json.loads(query("SELECT spec FROM experiments")[0]["spec"])
    profile = json.loads(query("SELECT profile FROM attempts WHERE trial = 0")[0]["profile"])
    return spec, profile, [
        [row["zero_stage"], row["micro_batch_size"], bucket, overlap]
        + [round(row[name], 4) for name in ("latency", "latency_spread", "forward", "backward",
                                            "step")]
        + [int(row["peak_bytes"]), round(row["seconds"], 3)] for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=build_folder, default=BUILD)
    parser.add_argument("--rounds", type=positive, default=6)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/recorded_surface.json")
    args = parser.parse_args()
    if not args.out.absolute().parent.is_dir():
        parser.error(f"--out {args.out}: its folder does not exist")
    interrupt_on_sigterm()
    launches = []
    with tempfile.TemporaryDirectory() as name:
        settings = list(itertools.product(SIZES, *KNOBS.values())) * args.rounds
        for size, bucket, overlap in settings:
            spec, profile, rows = record(args.build, pathlib.Path(name), size, bucket,
                                         overlap)
            launches += rows
    spec = {key: spec[key] for key in ("name", "entrypoint", "slots_per_trial", "ds_config",
                                       "hyperparameters", "device_memory_bytes") if key in spec}
    spec["search_space"] = {**KNOBS, SIZE: SIZES, **FIXED}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in sorted(launches))
    args.out.write_text('{"experiment": %s,\n"profile": %s,\n"columns": %s,\n"launches": [\n%s\n]}\n'
                        % (json.dumps(spec), json.dumps(profile), json.dumps(COLUMNS), lines))


if __name__ == "__main__":
    sys.exit(main())
