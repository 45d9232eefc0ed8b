#!/usr/bin/env python3
"""Compares tokens per second of GPT-2 training on the CPU: dsat against PyTorch with DeepSpeed.

usage: bench/cpu_training.py [--build BUILD] [--peer-python PYTHON] [--models small,gpt2] [...]

Both sides get the same task: model, ds_config, micro-batch, ranks and threads. They run in
alternation, so that other work on the machine affects both. The figure of a side is the median step
of its best round. Without --peer-python (a Python with torch and deepspeed) only dsat is measured.
"""
import argparse
import itertools
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

from dsat_trial import (BUILD, RanksFailed, build_folder, interrupt_on_sigterm, list_of, positive,
                        python, run_dsat, run_ranks)

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {
    "small": {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 256},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257},
}
SEQ_LEN = 256
NEVER = 1 << 30


def make_task(args, model, dtype, stage):
    shape = {"type": "gpt2", "n_positions": SEQ_LEN, **MODELS[model]}
    ds_config = {
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "gradient_accumulation_steps": args.accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "steps_per_print": NEVER,
    }
    if dtype == "bf16":
        ds_config["bf16"] = {"enabled": True}
    return {
        "fixed_window": True,
        "mode": "measure",
        "model": shape,
        "data": {"type": "synthetic", "seq_len": SEQ_LEN, "vocab_size": shape["vocab_size"]},
        "ds_config": ds_config,
        "start_profile_step": args.warmup,
        "end_profile_step": args.warmup + args.steps - 1,
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure_dsat(args, task_path, ranks, threads):
    return run_dsat(args.build, task_path, ranks, threads)


def run_peer(args, task_path, ranks, threads):
    environment = {
        "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "PATH": f"{pathlib.Path(args.peer_python).absolute().parent}:{os.environ['PATH']}",
    }
    command = [args.peer_python, HERE / "deepspeed_gpt2.py", task_path]
    result = run_ranks(command, ranks, threads, environment)
    return {"latency": statistics.median(result["step_ms"])}


def measure(args, task, ranks, threads):
    """Returns the best rounds of dsat and, if there is one, of its peer."""
    sides = [measure_dsat] + ([run_peer] if args.peer_python else [])
    results = [[] for _ in sides]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(task, file)
        file.flush()
        for _ in range(args.rounds):
            for side, rounds in zip(sides, results):
                rounds.append(side(args, file.name, ranks, threads))
    return [min(rounds, key=lambda metrics: metrics["latency"]) for rounds in results]


def has_deepspeed(python):
    probe = [python, "-c", "import deepspeed, torch"]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    return subprocess.run(probe, env=environment, capture_output=True, check=False).returncode == 0


def layouts(text):
    return [tuple(map(positive, layout.split("x", 1))) if "x" in layout else (positive(layout), 1)
            for layout in text.split(",")]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=build_folder, default=BUILD, help="folder of dsat-trial")
    parser.add_argument("--peer-python", type=python,
                        help="a Python that imports torch and deepspeed")
    parser.add_argument("--models", type=list_of(MODELS), default="small,gpt2")
    parser.add_argument("--dtypes", type=list_of(("f32", "bf16")), default="f32,bf16")
    parser.add_argument("--stages", type=list_of(("0", "1", "2", "3")), default="1,2,3")
    parser.add_argument("--layouts", type=layouts, default="1x2,2x1",
                        help="ranks x threads per rank")
    parser.add_argument("--micro-batch", type=positive, default=4)
    parser.add_argument("--accumulation", type=positive, default=1)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--warmup", type=int, default=3, help="steps before the measured ones")
    parser.add_argument("--steps", type=positive, default=8, help="measured steps of a round")
    args = parser.parse_args()
    if args.peer_python and not has_deepspeed(args.peer_python):
        print(f"{args.peer_python} has no torch and deepspeed; only dsat runs", file=sys.stderr)
        args.peer_python = None
    return args


def main():
    args = parse_args()
    interrupt_on_sigterm()
    print("| model | dtype | stage | ranks x threads | dsat tokens/s | forward, backward, step ms "
          "| peer tokens/s | ratio |\n|---|---|--:|---|--:|--:|--:|--:|")
    choices = (args.models, args.dtypes, args.layouts, args.stages)
    for model, dtype, (ranks, threads), stage in itertools.product(*choices):
        task = make_task(args, model, dtype, int(stage))
        dsat, *peer = measure(args, task, ranks, threads)
        tokens = 1e3 * ranks * args.micro_batch * args.accumulation * SEQ_LEN
        speeds = [tokens / side["latency"] for side in (dsat, *peer)]
        phases = ", ".join(f"{dsat[name]:.0f}" for name in ("forward", "backward", "step"))
        versus = f"{speeds[1]:.0f} | {speeds[0] / speeds[1]:.2f}" if peer else "- | -"
        print(f"| {model} | {dtype} | {stage} | {ranks}x{threads} | {speeds[0]:.0f} | {phases} "
              f"| {versus} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except RanksFailed as failure:
        sys.exit(str(failure))
