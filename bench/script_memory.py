"""Compares the memory that a dry run predicts for scripts with that of real runs on CPU ranks.

usage: script_memory.py [NAME ...]

Both count the bytes of tensors, at each operator (python/dsat/_memory.py); the real run has real
tensors, kernels and collectives, and two ranks, of which the larger peak counts. Prints a row for
each script, ZeRO stage (STAGES, "0 1 2 3" by default) and micro-batch size, and the errors of all.
Needs the Python of `scripts/setup --tests`; hf_lora also needs `pip install peft`.
"""
import contextlib
import json
import os
import pathlib
import runpy
import socket
import subprocess
import sys
import tempfile
import traceback

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = HERE.parent / "python"
RANKS = 2
TRAINER = ["--output_dir", "out", "--use_cpu", "--max_steps", "3", "--save_strategy", "no",
           "--report_to", "none", "--per_device_train_batch_size", "{size}", "--deepspeed",
           "ds_config.json"]
# The words behind "python", and whether the ds_config names the optimizer.
SCRIPTS = {
    "cifar": ("cifar.py --deepspeed --deepspeed_config ds_config.json".split(), True),
    "lora_loop": (["lora_loop.py"], True),
    "ddp_resnet": (["ddp_resnet.py", "{size}"], False),
    "accelerate_loop": (["accelerate_loop.py"], False),
    "lightning_loop": (["lightning_loop.py"], False),
    "hugging_face": (["hugging_face.py", *TRAINER], False),
    "trl_sft": (["trl_sft.py", *TRAINER, "--bf16", "false"], False),
    "trl_dpo": (["trl_dpo.py", *TRAINER, "--bf16", "false"], False),
    "gpt": ("../../examples/deepspeed/train.py --deepspeed_config ds_config.json".split(), True),
    "hf_lora": (["../../examples/hugging-face/finetune.py", "--lora", *TRAINER], False),
    "hf_checkpoints": (["hugging_face.py", "--gradient_checkpointing", "true", *TRAINER], False),
    "hf_bf16": (["hugging_face.py", "--bf16", "true", *TRAINER], False),
    "accelerate_plugin": ("../../examples/accelerate/train.py --deepspeed ds_config.json".split(),
                          False),
    "bert": (["hf_models.py", "bert", *TRAINER], False),
    "t5": (["hf_models.py", "t5", *TRAINER], False),
    "vit": (["hf_models.py", "vit", *TRAINER], False),
    "experts": ("../../tests/searcher/scripts/experts.py --deepspeed_config ds_config.json".split(),
                True),
}
# A dry run at the first size predicts all of them.
SIZES = (4, 16)
BUCKETS = {"reduce_bucket_size": 200000, "allgather_bucket_size": 200000,
           "stage3_param_persistence_threshold": 1000, "stage3_prefetch_bucket_size": 50000}


def become_rank(script):
    """Runs the script on real tensors; prints the highest bytes at the end of the second step."""
    from dsat._memory import KINDS, MemoryTracker
    tracker = MemoryTracker()

    def finish():
        width = len(KINDS)
        totals = [sum(tracker.curve[at:at + width - 1])
                  for at in range(0, len(tracker.curve), width)]
        pathlib.Path(os.environ["PEAK_FILE"]).write_text(str(max(totals)))
        os._exit(0)
    tracker.watch(finish)
    with contextlib.suppress(ImportError):
        import deepspeed
        tracker.watch_engines(deepspeed)
    sys.path[0] = str(pathlib.Path(script).parent)
    with tracker:
        runpy.run_path(script, run_name="__main__")


def environment():
    paths = [str(PYTHON / "hook"), str(PYTHON), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "DS_ACCELERATOR": "cpu",
            "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def words_of(name, size):
    return [word.replace("{size}", str(size)) for word in SCRIPTS[name][0]]


def write_config(folder, name, stage, size):
    config = {"train_micro_batch_size_per_gpu": size, "gradient_accumulation_steps": 1,
              "zero_optimization": {"stage": stage, **BUCKETS}}
    if SCRIPTS[name][1]:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3}}
    if stage == 0 and not SCRIPTS[name][1]:
        config["zero_allow_untested_optimizer"] = True
    (folder / "ds_config.json").write_text(json.dumps(config))


def start_rank(rank, port, folder, script, arguments):
    """Forks a rank, so that it has what this process has imported. Returns its id."""
    child = os.fork()
    if child:
        return child
    os.environ.update({
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS), "LOCAL_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "DSAT_DS_CONFIG": str(folder / "ds_config.json"),
        "DSAT_TRIAL_DIR": str(folder), "PEAK_FILE": str(folder / f"peak{rank}")})
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.chdir(folder)
    sys.argv = [script, *arguments]
    try:
        become_rank(script)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def measured(folder, name, size):
    """The larger peak of the ranks of a real run, in bytes."""
    from dsat._dry_process import preload
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script, *arguments = words_of(name, size)
    script = str(HERE / "scripts" / script)
    preload(script)
    peaks = [folder / f"peak{rank}" for rank in range(RANKS)]
    for peak in peaks:
        peak.unlink(missing_ok=True)
    for child in [start_rank(rank, port, folder, script, arguments) for rank in range(RANKS)]:
        os.waitpid(child, 0)
    for left in pathlib.Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):
        left.unlink()
    try:
        return max(int(peak.read_text()) for peak in peaks)
    except FileNotFoundError:
        raise RuntimeError((folder / "rank0.log").read_text()[-2000:]) from None


def predicted(folder, name, size):
    """What a dry run says: the lines whose highest is the peak for a micro-batch size."""
    script, *arguments = words_of(name, size)
    dsat = os.environ.get("DSAT_PROGRAM", str(HERE.parent / "build/dsat"))
    own = {name: value for name, value in os.environ.items() if not name.startswith("DSAT_")}
    run = subprocess.run([dsat, "estimate", "--json", "--ranks", str(RANKS), "--", sys.executable,
                          str(HERE / "scripts" / script), *arguments], cwd=folder,
                         env=own, capture_output=True, text=True, check=False)
    try:
        return json.loads(run.stdout)["rows"][0]["lines"]
    except (ValueError, LookupError):
        raise RuntimeError((run.stdout + run.stderr)[-2000:]) from None


def compare(folder, name, stage):
    """Prints a row for each size, and gives the errors."""
    write_config(folder, name, stage, SIZES[0])
    lines = predicted(folder, name, SIZES[0])
    for size in SIZES:
        write_config(folder, name, stage, size)
        real = measured(folder, name, size)
        said = max(start + slope * size for start, slope in lines)
        print(f"{name:16} {stage:5} {size:5} {said:12.0f} {real:12} "
              f"{100 * (said / real - 1):+6.2f} %", flush=True)
        yield abs(said / real - 1)


def main():
    if "DSAT_DS_CONFIG" not in os.environ:  # Python looks for the hook when it starts.
        os.execve(sys.executable, [sys.executable, *sys.argv],
                  {**environment(), "DSAT_DS_CONFIG": os.devnull})
    errors = []
    print(f"{'script':16} stage  size {'predicted':>12} {'measured':>12}   error")
    for name in sys.argv[1:] or SCRIPTS:
        for stage in map(int, os.environ.get("STAGES", "0 1 2 3").split()):
            with tempfile.TemporaryDirectory() as path:
                try:
                    errors.extend(compare(pathlib.Path(path), name, stage))
                except RuntimeError as error:
                    print(f"{name:16} {stage:5} failed: {error}", flush=True)
    if not errors:
        sys.exit(1)
    errors.sort()
    print(f"{len(errors)} cells: median error {100 * errors[len(errors) // 2]:.2f} %, 95th "
          f"percentile {100 * errors[int(0.95 * len(errors))]:.2f} %, "
          f"largest {100 * errors[-1]:.2f} %")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        sys.argv = sys.argv[2:]
        become_rank(sys.argv[0])
    else:
        main()
