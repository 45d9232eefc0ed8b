"""Runs scripts on fake tensors and on real ones."""
import json
import os
import pathlib
import subprocess
import sys

from conftest import ROOT, SCRIPTS, free_port

CONFIG = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
          "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000,
                                "allgather_bucket_size": 1000}}
# The parameters of small_model.py.
MODEL = 32 * 16 + (16 + 1) * 16 + (16 + 1) * 32


def environment(**more):
    return {**os.environ, "PYTHONPATH": f"{ROOT}/python/hook:{ROOT}/python", "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", **more}


def dry_run(folder, script, *arguments, ds_config=None, ranks=1, memory=0, all_stages=False,
            on_gpu=False, **more):
    request = {"script": str(SCRIPTS / script), "is_module": False, "arguments": arguments,
               "folder": str(folder), "environment": {}, **more,
               "ds_config": ds_config or {}, "ranks": ranks, "memory": memory,
               "on_gpu": on_gpu, "all_stages": all_stages}
    run = subprocess.run(
        [sys.executable, "-m", "dsat._dry_run", json.dumps(request)], capture_output=True,
        env=environment(DSAT_DS_CONFIG=os.devnull, DSAT_MEASURE="memory", TMPDIR=str(folder)),
        text=True, check=True, timeout=120)
    assert not list(pathlib.Path(folder).glob("dsat-dry-run-*")), "it leaves files"
    return json.loads(pathlib.Path(more["report"]).read_text() if "report" in more else run.stdout)


def real_peak(folder, script, ranks=1, ds_config=None):
    """The highest bytes of a rank that trains on real tensors."""
    config = folder / "ds_config.json"
    config.write_text(json.dumps(ds_config or {}))
    own = {} if ds_config is None else {"DSAT_DS_CONFIG": str(config)}
    port = str(free_port())
    started = [subprocess.Popen(
        [sys.executable, str(ROOT / "bench/script_memory.py"), "--rank", str(SCRIPTS / script)],
        env=environment(PEAK_FILE=str(folder / f"peak{rank}"), MASTER_ADDR="127.0.0.1",
                        MASTER_PORT=port, RANK=str(rank), LOCAL_RANK=str(rank), **own,
                        WORLD_SIZE=str(ranks), LOCAL_SIZE=str(ranks)), cwd=folder,
        stdout=subprocess.DEVNULL) for rank in range(ranks)]
    assert [rank.wait(timeout=120) for rank in started] == [0] * ranks
    return max(int((folder / f"peak{rank}").read_text()) for rank in range(ranks))
