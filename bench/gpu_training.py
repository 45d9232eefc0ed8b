#!/usr/bin/env python3
"""GPT-2 training on one GPU: tokens per second, MFU and memory of dsat beside torch.compile.

usage: bench/gpu_training.py [--build BUILD] [--peer-python PYTHON] [--models 124M,350M] [...]

Both sides train the same model in bf16 with AdamW, sequences of 1024 tokens and the same micro-batch
size. They take turns, one process per side, model and round; a side's figure is the median step of its
best round. "used" is the most GPU memory in use while dsat runs, less what was in use before, beside
what `dsat estimate` predicts and what dsat counts. Without --peer-python (a Python with torch) only
dsat is measured. Each measurement is appended to --results as it comes. --device cpu runs the same on
the processor, to try the script.
"""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading

from dsat_trial import (BUILD, RanksFailed, build_folder, interrupt_on_sigterm, list_of, positive,
                        python, run_dsat, run_ranks)

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {  # With a micro-batch size at which an H200 is busy.
    "tiny": ({"n_layer": 2, "n_embd": 64, "n_head": 2}, 2),
    "124M": ({"n_layer": 12, "n_embd": 768, "n_head": 12}, 32),
    "350M": ({"n_layer": 24, "n_embd": 1024, "n_head": 16}, 16),
    "774M": ({"n_layer": 36, "n_embd": 1280, "n_head": 20}, 16),
    "1558M": ({"n_layer": 48, "n_embd": 1600, "n_head": 25}, 8),
}
VOCABULARY = 50257
NEVER = 1 << 30
MIB = 1 << 20
OFFLOAD_DEVICE_BYTES = 12 << 30


def make_task(args, model, micro_batch):
    ds_config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "gradient_clipping": 1.0,
        "steps_per_print": NEVER,
    }
    if args.offload:
        ds_config["zero_optimization"] = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    else:  # As dsat auto does where there is memory.
        ds_config["activation_checkpointing"] = {"keep_norms_and_activations": True}
    return {
        "fixed_window": True,
        "mode": "measure",
        "device": args.device,
        "device_memory_bytes": OFFLOAD_DEVICE_BYTES if args.offload else 0,
        "model": {"type": "gpt2", "n_positions": args.seq_len, "vocab_size": VOCABULARY,
                  **MODELS[model][0]},
        "data": {"type": "synthetic", "seq_len": args.seq_len, "vocab_size": VOCABULARY},
        "ds_config": ds_config,
        "start_profile_step": args.warmup,
        "end_profile_step": args.warmup + args.steps - 1,
    }


class NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong)]


class GpuMemory:
    """The most bytes in use on the first visible GPU while it is open, less those before.

    0 without one, or if CUDA_VISIBLE_DEVICES has names.

    The driver's management library is asked once a second from this process: starting nvidia-smi each
    time would disturb what is timed.
    """

    def __enter__(self):
        self.device = ctypes.c_void_p()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            found = (self.nvml.nvmlInit_v2() == 0 and
                     self.nvml.nvmlDeviceGetHandleByIndex_v2(
                         int(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]),
                         ctypes.byref(self.device)) == 0)
        except (OSError, ValueError):
            found = False
        self.before = self.used() if found else 0
        self.most = self.before
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        if found:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        if self.thread.ident is not None:
            self.thread.join()

    def used(self):
        memory = NvmlMemory()
        self.nvml.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(memory))
        return memory.used

    def watch(self):
        while not self.done.wait(1):
            self.most = max(self.most, self.used())


def run_side(args, side, task_path):
    """The metrics of one process."""
    if side == "peer":
        command = [args.peer_python, HERE / "compiled_gpt2.py", task_path]
        result = run_ranks(command, 1, args.threads, {}, limit_s=args.limit)
        return {"latency": statistics.median(result["step_ms"]), "peak_bytes": result["peak_bytes"]}
    with GpuMemory() as memory:
        metrics = run_dsat(args.build, task_path, 1, args.threads, limit_s=args.limit)
    return {**metrics, "used_bytes": memory.most - memory.before}


def measure(args, side, model, micro_batch):
    """What a round of a side gave; without tokens_per_second, but with `error`, if it failed."""
    result = {"model": model, "side": side, "micro_batch": micro_batch, "offload": args.offload}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(make_task(args, model, micro_batch), file)
        file.flush()
        try:
            metrics = run_side(args, side, file.name)
            rate = 1e3 * micro_batch * args.seq_len / metrics["latency"]
            result.update(metrics, tokens_per_second=rate)
        except RanksFailed as failure:
            result["error"] = str(failure)
            print(f"{model}, {side}: {failure}", file=sys.stderr, flush=True)
    if args.results:
        with open(args.results, "a") as file:
            file.write(json.dumps(result) + "\n")
    return result


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


def best(results):
    """The fastest round, or one that says why there is none."""
    return max(results, key=lambda result: result.get("tokens_per_second", 0))


def row(args, model):
    """A line of the table, and whether all rounds succeeded."""
    micro_batch = args.micro_batch or MODELS[model][1]
    rounds = {side: [] for side in args.sides}
    for _ in range(args.rounds):
        for side in args.sides:
            rounds[side].append(measure(args, side, model, micro_batch))
    fastest = {side: best(results) for side, results in rounds.items()}
    cells = [model, str(micro_batch)] + ["-"] * 7
    dsat, peer = fastest.get("dsat", {}), fastest.get("peer", {})
    if "tokens_per_second" in dsat:
        cells[2] = f"{dsat['tokens_per_second']:.0f}"
        cells[3] = f"{100 * dsat['MFU']:.1f} %" if "MFU" in dsat else "-"
        cells[4] = f"{predicted_bytes(args, model, micro_batch) / MIB:.0f}"
        cells[5:7] = [f"{dsat[key] / MIB:.0f}" for key in ("peak_bytes", "used_bytes")]
    if "tokens_per_second" in peer:
        cells[7] = f"{peer['tokens_per_second']:.0f}"
    if "tokens_per_second" in dsat and "tokens_per_second" in peer:
        cells[8] = f"{dsat['tokens_per_second'] / peer['tokens_per_second']:.2f}"
    succeeded = not any("error" in result for results in rounds.values() for result in results)
    return f"| {' | '.join(cells)} |", succeeded


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=build_folder, default=BUILD, help="where dsat-trial is")
    parser.add_argument("--peer-python", type=python, help="a Python that imports torch")
    parser.add_argument("--sides", type=list_of(("dsat", "peer")),
                        help="dsat,peer (default), or one of them")
    parser.add_argument("--models", type=list_of(MODELS), default="124M,350M,774M,1558M",
                        help=", ".join(MODELS))
    parser.add_argument("--micro-batch", type=positive, help="default: by model, 8 to 32")
    parser.add_argument("--seq-len", type=positive, default=1024)
    parser.add_argument("--offload", action="store_true",
                        help="stage 3 with the optimizer in host memory, in 12 GiB of the GPU's")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--estimate-device", default="h200", help="of dsat estimate")
    parser.add_argument("--threads", type=positive, default=8, help="of the processor")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--warmup", type=int, default=5, help="steps before the measured ones")
    parser.add_argument("--steps", type=positive, default=10, help="measured steps of a round")
    parser.add_argument("--limit", type=float, help="seconds after which a process is ended")
    parser.add_argument("--results", help="file that each measurement is appended to, as JSON")
    args = parser.parse_args()
    args.sides = args.sides or (["dsat", "peer"] if args.peer_python else ["dsat"])
    if "peer" in args.sides and not args.peer_python:
        parser.error("--sides peer needs --peer-python, a Python that imports torch")
    return args


def main():
    args = parse_args()
    interrupt_on_sigterm()
    print("| model | micro-batch | dsat tokens/s | MFU | predicted MiB | counted MiB | used MiB "
          "| peer's tokens/s | ratio |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    all_succeeded = True
    for model in args.models:
        line, succeeded = row(args, model)
        print(line, flush=True)
        all_succeeded = all_succeeded and succeeded
    return 0 if all_succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
