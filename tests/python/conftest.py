"""Runs scripts on ranks as dsat runs a trial: with a config, a folder and the environment."""
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
sys.path.insert(0, str(ROOT / "python"))


def free_port():
    """An unused port that the kernel gives to no connection of another test meanwhile."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def remove_buffers(port):
    """Removes the shared memory that DeepSpeed's collectives leave."""
    for left in pathlib.Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):
        left.unlink()


def interpreter_in(spec):
    """Lets an experiment file start this interpreter."""
    text = spec.read_text()
    assert "entrypoint: python3 " in text
    spec.write_text(text.replace("entrypoint: python3 ", f"entrypoint: {sys.executable} "))


class RunningTrial:
    """The folder of one trial, and what its ranks left there."""

    def __init__(self, folder, cache, server):
        self.folder, self.cache, self.server = folder, cache, server
        self.measure = "steps"

    def write_config(self, measure="steps", **settings):
        """`measure` is "steps", "profile", or "" for a full run."""
        self.measure = measure
        config = {"train_micro_batch_size_per_gpu": 6, "gradient_accumulation_steps": 2,
                  "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000000}, **settings}
        (self.folder / "ds_config.json").write_text(json.dumps(config))

    def environment(self, rank, ranks, port):
        hook = os.pathsep.join([str(ROOT / "python/hook"), str(ROOT / "python")])
        # As searcher/scripts/command_target.cc: one rank is started as without a launcher.
        place = {"DSAT_RANK": str(rank), "DSAT_MASTER_PORT": str(port)} if ranks == 1 else {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
            "DSAT_RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
            "LOCAL_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        return {**os.environ, **place, "PYTHONPATH": hook, "DSAT_TRIAL_ID": "7",
                "DSAT_DS_CONFIG": str(self.folder / "ds_config.json"),
                "DSAT_TRIAL_DIR": str(self.folder), "DSAT_FIXED_STEPS": "1",
                "DSAT_MEASURE": self.measure, "DSAT_START_PROFILE_STEP": "1",
                "DSAT_END_PROFILE_STEP": "4",
                "DS_ACCELERATOR": "cpu",
                "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(self.cache),
                "HF_HUB_OFFLINE": "1",
                "CUDA_VISIBLE_DEVICES": ""}

    def run(self, script, *arguments, ranks=2, **environment):
        """Runs the script on all ranks, and returns their exit codes."""
        port = free_port()
        run = [{"script": str(SCRIPTS / script), "arguments": arguments, "folder": str(self.folder),
                "environment": {**self.environment(rank, ranks, port), **environment},
                "log": str(self.folder / f"rank{rank}.log")} for rank in range(ranks)]
        print(json.dumps(run), file=self.server.stdin, flush=True)
        codes = json.loads(self.server.stdout.readline())
        remove_buffers(port)
        return codes

    def log(self, rank=0):
        return (self.folder / f"rank{rank}.log").read_text()

    def read(self, name):
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="session")
def extensions(tmp_path_factory):
    """DeepSpeed's compiled extensions, which take a minute once."""
    given = os.environ.get("DSAT_TEST_EXTENSIONS")
    folder = pathlib.Path(given) if given else tmp_path_factory.mktemp("torch_extensions")
    for lock in folder.glob("**/lock"):  # A killed compiler's, which others wait for.
        if time.time() - lock.stat().st_mtime > 600:
            lock.unlink()
    return folder


@pytest.fixture(scope="session")
def rank_server():
    """A process that forks ranks (rank_server.py)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                   "TORCHINDUCTOR_COMPILE_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen([sys.executable, str(ROOT / "tests/python/rank_server.py")],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment) as server:
        yield server
        server.stdin.close()


@pytest.fixture
def run_trial(tmp_path, extensions, rank_server):
    return RunningTrial(tmp_path, extensions, rank_server)


@pytest.fixture
def trial_config(tmp_path, monkeypatch):
    """Writes the config of a trial that this process then belongs to."""
    from dsat._trial import rank_file

    def write(config, measure="steps"):
        path = tmp_path / "trial" / "ds_config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
        monkeypatch.setenv("DSAT_DS_CONFIG", str(path))
        monkeypatch.setenv("DSAT_TRIAL_DIR", str(path.parent))
        monkeypatch.setenv("DSAT_TRIAL_ID", "5")
        monkeypatch.setenv("DSAT_FIXED_STEPS", "1")
        monkeypatch.setenv("DSAT_MEASURE", measure)
        monkeypatch.setenv("DSAT_START_PROFILE_STEP", "1")
        monkeypatch.setenv("DSAT_END_PROFILE_STEP", "4")
        monkeypatch.setattr("dsat._trial._current", None)
        rank_file.cache_clear()
        return path
    return write
