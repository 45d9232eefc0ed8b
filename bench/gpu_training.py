#!/usr/bin/env python3
"""GPT-2 training on one GPU: tokens per second, MFU and peak memory, dsat beside torch.compile.

usage: bench/gpu_training.py [--build BUILD] [--peer-python PYTHON] [--models 124M,350M] [...]

Both sides train the same model in bf16 with sequences of 1024 tokens and AdamW, each with the
micro-batch size that is fastest for it. They run in turn, round after round; a side's figure is its
best round's median step. Memory is what nvidia-smi shows while dsat runs, less what it showed before,
beside what `dsat estimate` predicts. Without --peer-python (a Python with torch) only dsat is
measured. With --device cpu the same runs on the processor, to try the script.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading

from dsat_trial import OUT_OF_MEMORY, UNUSED, RanksFailed, run_dsat, run_ranks

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {
    "tiny": {"n_layer": 2, "n_embd": 64, "n_head": 2},
    "124M": {"n_layer": 12, "n_embd": 768, "n_head": 12},
    "350M": {"n_layer": 24, "n_embd": 1024, "n_head": 16},
    "774M": {"n_layer": 36, "n_embd": 1280, "n_head": 20},
    "1558M": {"n_layer": 48, "n_embd": 1600, "n_head": 25},
}
VOCABULARY = 50257
NEVER = 1 << 30
MIB = 1 << 20


def make_task(args, model, micro_batch):
    return {
        **UNUSED,
        "mode": "measure",
        "device": args.device,
        "model": {"type": "gpt2", "n_positions": args.seq_len, "vocab_size": VOCABULARY,
                  **MODELS[model]},
        "data": {"type": "synthetic", "seq_len": args.seq_len, "vocab_size": VOCABULARY},
        "ds_config": {
            "train_micro_batch_size_per_gpu": micro_batch,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "gradient_clipping": 1.0,
            "steps_per_print": NEVER,
        },
        "start_profile_step": args.warmup,
        "end_profile_step": args.warmup + args.steps - 1,
    }


class GpuMemory:
    """The most bytes in use on the first GPU while it is open, less those before; 0 without one."""

    def __enter__(self):
        self.before, self.most = self.used(), 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    @staticmethod
    def used():
        query = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        try:
            return int(subprocess.run(query, capture_output=True, check=True).stdout) * MIB
        except (OSError, subprocess.CalledProcessError):
            return 0

    def watch(self):
        while not self.done.wait(0.2):
            self.most = max(self.most, self.used() - self.before)


def run_peer(args, path):
    result = run_ranks([args.peer_python, HERE / "compiled_gpt2.py", path], 1, args.threads, {})
    return {"latency": statistics.median(result["step_ms"]), "peak_bytes": result["peak_bytes"]}


def run_side(side, args, model, micro_batch):
    """The metrics of one side with one micro-batch size; None if it does not fit."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(make_task(args, model, micro_batch), file)
        file.flush()
        try:
            if side == "peer":
                metrics = run_peer(args, file.name)
            else:
                with GpuMemory() as memory:
                    metrics = run_dsat(args.build, file.name, 1, args.threads)
                metrics["used_bytes"] = memory.most
        except RanksFailed as failure:
            if failure.exit_code != OUT_OF_MEMORY:
                raise
            return None
    metrics["tokens_per_second"] = 1e3 * micro_batch * args.seq_len / metrics["latency"]
    return {**metrics, "micro_batch": micro_batch}


def best_micro_batch(side, args, model):
    """Tries sizes in turn up to the first that does not fit; gives the fastest one."""
    results = []
    for micro_batch in args.micro_batches:
        result = run_side(side, args, model, micro_batch)
        if result is None:
            break
        results.append(result)
    if not results:
        sys.exit(f"{model}: not even micro-batches of {args.micro_batches[0]} fit ({side})")
    return max(results, key=lambda result: result["tokens_per_second"])["micro_batch"]


def predicted_bytes(args, model, micro_batch):
    task = make_task(args, model, micro_batch)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(task["ds_config"], file)
        file.flush()
        command = [pathlib.Path(args.build) / "dsat", "estimate", "--json", "--ranks", "1",
                   "--model", json.dumps(task["model"]), "--seq-len", str(args.seq_len),
                   "--ds-config", file.name, "--device", args.estimate_device]
        shown = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return json.loads(shown)["estimate"]["device"]["peak_bytes"]


def row(args, model):
    sides = ["dsat"] + (["peer"] if args.peer_python else [])
    sizes = {side: best_micro_batch(side, args, model) for side in sides}
    rounds = {side: [] for side in sides}
    for _ in range(args.rounds):
        for side in sides:
            rounds[side].append(run_side(side, args, model, sizes[side]))
    best = {side: max(rounds[side], key=lambda r: r["tokens_per_second"]) for side in sides}
    dsat, peer = best["dsat"], best.get("peer")
    mfu = f"{100 * dsat['MFU']:.1f} %" if "MFU" in dsat else "-"
    predicted = predicted_bytes(args, model, dsat["micro_batch"]) / MIB
    versus = "- | - | -"
    if peer:
        ratio = dsat["tokens_per_second"] / peer["tokens_per_second"]
        versus = f"{peer['micro_batch']} | {peer['tokens_per_second']:.0f} | {ratio:.2f}"
    return (f"| {model} | {dsat['micro_batch']} | {dsat['tokens_per_second']:.0f} | {mfu} | "
            f"{predicted:.0f} | {dsat['peak_bytes'] / MIB:.0f} | {dsat['used_bytes'] / MIB:.0f} | "
            f"{versus} |")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=HERE.parent / "build", help="where dsat-trial is")
    parser.add_argument("--peer-python", help="a Python that imports torch")
    parser.add_argument("--models", default="124M,350M,774M,1558M", help=", ".join(MODELS))
    parser.add_argument("--micro-batches", default="4,8,16,32,64,128")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--estimate-device", default="h200", help="of dsat estimate")
    parser.add_argument("--threads", type=int, default=8, help="of the processor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=5, help="steps before the measured ones")
    parser.add_argument("--steps", type=int, default=10, help="measured steps of a round")
    args = parser.parse_args()
    args.micro_batches = [int(size) for size in args.micro_batches.split(",")]
    return args


def main():
    args = parse_args()
    print("| model | micro-batch | dsat tokens/s | MFU | predicted MiB | counted MiB | used MiB "
          "| peer's micro-batch | its tokens/s | ratio |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for model in args.models.split(","):
        print(row(args, model), flush=True)


if __name__ == "__main__":
    try:
        main()
    except RanksFailed as failure:
        sys.exit(str(failure))
