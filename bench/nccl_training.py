#!/usr/bin/env python3
"""Trains a small GPT by NCCL and through host memory, and compares every step.

usage: bench/nccl_training.py [--build BUILD] [--trainings stage-2,pipeline-of-4] [...]

Each training runs twice, with the same samples: once its ranks communicate by NCCL, and once through
host memory, all of them on the first GPU. The table has the largest relative difference of a loss or
of a gradient's norm, which may be 1e-2. Where there are fewer GPUs than ranks, NCCL_HOSTID makes NCCL
take each rank for one of another host, because NCCL lets no two ranks of a host share a GPU: its
sockets carry the bytes then. Exit status: 0 if all trainings agree, or where NCCL is not installed; 1
if one does not agree, or fails, or communicates in another way.
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

from dsat_trial import (BUILD, RanksFailed, build_folder, interrupt_on_sigterm, list_of, positive,
                        run_task)

# Sums are rounded in another order, and algorithms of multiplications are chosen by their times.
MOST_DIFFERENCE = 1e-2
BF16 = {"bf16": {"enabled": True}}
TRAININGS = {  # Ranks, and what the configuration has besides.
    "stage-0": (2, {**BF16, "zero_optimization": {"stage": 0}}),
    "stage-1-f16": (2, {"zero_optimization": {"stage": 1},
                        "fp16": {"enabled": True, "initial_scale_power": 8}}),
    "stage-2": (2, {**BF16, "zero_optimization": {
        "stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e5}}),
    "stage-3": (2, {**BF16, "zero_optimization": {
        "stage": 3, "stage3_param_persistence_threshold": 0}}),
    "stage-3-offload": (2, {**BF16, "zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}),
    "1-bit-adam": (2, {**BF16, "optimizer": {
        "type": "OneBitAdam", "params": {"lr": 1e-4, "freeze_step": 3}}}),
    "stage-3-of-4": (4, {**BF16, "zero_optimization": {"stage": 3}}),
    "pipeline-of-4": (4, {**BF16, "pipeline": {"stages": 2}, "zero_optimization": {"stage": 1}}),
}
LOG_OF_STAGING = "collectives go through host memory"


def run(args, name, by_nccl, folder):
    """The steps of a training, as metrics.jsonl has them."""
    ranks, config = TRAININGS[name]
    history = folder / "metrics.jsonl"
    history.unlink(missing_ok=True)
    task = folder / "task.json"
    task.write_text(json.dumps({
        "mode": "train",
        "device": args.device,
        "model": {"type": "gpt2", "n_layer": 4, "n_embd": args.width, "n_head": args.width // 32,
                  "vocab_size": 256},
        "data": {"type": "synthetic", "seq_len": 64, "vocab_size": 256},
        "ds_config": {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
                      "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, **config},
        "train_steps": args.steps,
        "history_path": str(history),
    }))

    def of_rank(rank):
        if not by_nccl:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
            return {"CUDA_VISIBLE_DEVICES": visible.split(",")[0]}
        if args.gpus >= ranks:
            return {}
        return {"NCCL_HOSTID": f"host-of-rank-{rank}", "NCCL_NET": "Socket",
                "NCCL_SOCKET_IFNAME": "lo"}

    log = folder / "log"
    run_task(args.build, task, ranks, args.threads, of_rank=of_rank, log_path=log, limit_s=args.limit)
    if args.device == "cuda" and (LOG_OF_STAGING in log.read_text()) == by_nccl:
        way = "NCCL" if by_nccl else "host memory"
        raise RanksFailed([name], f"ranks that do not communicate by {way}", log.read_text())
    return [json.loads(line) for line in history.read_text().splitlines()]


def difference(one, other):
    """Of two steps: the larger relative one of loss and norm; infinite if one was skipped alone."""
    if one["skipped"] != other["skipped"]:
        return math.inf
    pairs = [(one[key], other[key]) for key in ("loss", "grad_norm")]
    # A skipped step has no norm, and 1-bit Adam computes none.
    return max((abs(a / b - 1) for a, b in pairs if a and b), default=math.inf)


def row(args, name):
    """A line of the table, and whether both trainings agree."""
    with tempfile.TemporaryDirectory() as folder:
        nccl, host = (run(args, name, by_nccl, pathlib.Path(folder)) for by_nccl in (True, False))
    largest = max(map(difference, nccl, host))
    agrees = len(nccl) == len(host) == args.steps and largest <= MOST_DIFFERENCE
    cells = [name, TRAININGS[name][0], f"{nccl[-1]['loss']:.4f}", f"{largest:.1e}",
             "agree" if agrees else "DO NOT AGREE"]
    return f"| {' | '.join(map(str, cells))} |", agrees


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=build_folder, default=BUILD, help="where dsat-trial is")
    parser.add_argument("--trainings", type=list_of(TRAININGS), default=",".join(TRAININGS),
                        help=", ".join(TRAININGS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--width", type=positive, default=512, help="of the model, 32 for a head")
    parser.add_argument("--steps", type=positive, default=8)
    parser.add_argument("--threads", type=positive, default=1,
                        help="of the processor, for each rank")
    parser.add_argument("--limit", type=positive, default=60,
                        help="seconds after which a training is ended")
    args = parser.parse_args()
    if args.width % 32:
        parser.error(f"argument --width: {args.width}; expected a multiple of 32")
    return args


def main():
    args = parse_args()
    interrupt_on_sigterm()
    shown = subprocess.run([args.build / "dsat", "doctor", "--json"], capture_output=True,
                           check=True, text=True).stdout
    found = json.loads(shown)
    args.gpus = len(found["cuda"]["gpus"])
    if args.device == "cuda" and (args.gpus == 0 or found["nccl"] is None):
        print(f"skipped: there is no {'NCCL' if args.gpus else 'GPU'} (dsat doctor says why)")
        return 0
    print("| training | ranks | last loss | largest difference | steps |\n|---|--:|--:|--:|---|",
          flush=True)
    all_agree = True
    for name in args.trainings:
        try:
            line, agrees = row(args, name)
        except RanksFailed as failure:
            line, agrees = f"{name}: {failure}", False
        print(line, flush=True)
        all_agree = all_agree and agrees
    return 0 if all_agree else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
