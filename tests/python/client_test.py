"""Experiments that a Python program runs, and their results, with the real dsat."""
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile

import dsat
import pytest

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("DSAT_PROGRAM", "dsat")) is None,
    reason="there is no dsat; set DSAT_PROGRAM to the path of the program")

PROFILE = {"num_params": 10**8, "trainable_num_params": 10**8,
           "activation_bytes_per_sample": 10**8, "device_memory_bytes": 8 * 10**9}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "ds_config.json").write_text(json.dumps(
        {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1},
         "optimizer": {"type": "AdamW"}}))
    (tmp_path / "deepspeed.yaml").write_text(
        "name: told\nentrypoint: python3 train.py --deepspeed_config ds_config.json\n"
        "resources: {slots_per_trial: 2}\nsearcher: {name: single}\n"
        "hyperparameters: {deepspeed_config: ds_config.json}\n")
    (tmp_path / "train.py").write_text("")
    return tmp_path


def create(files, **arguments):
    return dsat.Experiment.create(
        "random", files / "deepspeed.yaml", db=files / "dsat.db",
        options=["--max-trials", "5", "--metric", "throughput", "--confirm", "0"], **arguments)


def run_all(experiment):
    """Tells the throughput that grows with the micro-batch, and that 20 do not fit."""
    while not experiment.finished:
        trial = experiment.ask()
        if trial is None:
            break
        micro_batch = trial.ds_config["train_micro_batch_size_per_gpu"]
        if trial.is_profile:
            experiment.tell(trial, profile=PROFILE)
        elif micro_batch >= 20:
            experiment.tell(trial, infeasible="out of memory")
        else:
            experiment.tell(trial.id, metrics={"throughput": 10.0 * micro_batch, "latency": 5.0})


def test_a_program_runs_the_trials_and_reads_the_results(files):
    experiment = create(files, profile=PROFILE)
    assert not experiment.finished
    run_all(experiment)
    assert experiment.finished
    found = dsat.results(files / "dsat.db")
    assert found == dsat.results(files, experiment=1)
    assert found and all(trial.experiment == 1 for trial in found)
    assert {trial.state for trial in found} <= {"succeeded", "infeasible"}
    best = max((trial for trial in found if trial.samples_per_s), key=lambda t: t.samples_per_s)
    assert [trial.trial for trial in found if trial.is_best] == [best.trial]
    assert best.samples_per_s == 10.0 * best.micro_batch_size
    assert best.metric_value == best.samples_per_s
    assert best.ds_config["train_micro_batch_size_per_gpu"] == best.micro_batch_size
    assert experiment.best()["id"] == best.trial
    assert dsat.results(files, experiment="told") == found
    assert dsat.results(files, experiment="1") == found
    with pytest.raises(ValueError, match=r"no experiment 9; there are: 1 \(told\)"):
        dsat.results(files, experiment=9)


def test_without_a_profile_the_first_trial_asks_for_it(files):
    experiment = create(files)
    first = experiment.ask()
    assert first.is_profile
    assert experiment.ask() is None and not experiment.finished
    experiment.tell(first, profile=PROFILE)
    second = experiment.ask()
    assert second.kind == "submitted"
    experiment.tell(second, failed="node 7\0rebooted" + 200000 * "!")
    assert dsat.results(files)[1].reason.startswith("node 7 rebooted!!!")


def test_an_experiment_that_has_failed_says_why(files):
    experiment = create(files)
    experiment.tell(experiment.ask(), failed="node 7 rebooted")
    assert experiment.finished
    with pytest.raises(dsat.DsatError, match="experiment failed: .*node 7 rebooted"):
        experiment.ask()


def test_an_error_has_the_message_of_dsat(files):
    experiment = create(files, profile=PROFILE)
    with pytest.raises(dsat.DsatError, match="experiment 1 has no trial 77"):
        experiment.tell(77, metrics={"throughput": 1.0})
    with pytest.raises(dsat.DsatError, match='standard input/num_tokens: unknown key'):
        create(files, profile={**PROFILE, "num_tokens": 1})
    with pytest.raises(ValueError, match="give one of"):
        experiment.tell(0)
    with pytest.raises(dsat.DsatError, match="no such program"):
        dsat.Experiment(1, files / "dsat.db", program="no-such-dsat").ask()


def test_results_of_a_file_that_is_no_database_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such database"):
        dsat.results(tmp_path)
    (tmp_path / "dsat.db").write_text("no database, but long enough to be looked at" * 40)
    with pytest.raises(ValueError, match="dsat.db"):
        dsat.results(tmp_path)


def test_numbers_that_are_none_are_refused_by_name(tmp_path):
    experiment = dsat.Experiment(1, tmp_path / "none.db")
    with pytest.raises(ValueError, match="metrics: throughput is nan; expected a finite number"):
        experiment.tell(0, metrics={"throughput": float("nan")})


def test_results_in_a_folder_that_is_read_only(files):
    run_all(create(files, profile=PROFILE))
    found = dsat.results(files)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(files / "dsat.db", folder)
        os.chmod(folder, 0o555)
        user = os.geteuid()
        try:
            os.seteuid(65534 if user == 0 else user)  # Root may write to every folder.
            assert dsat.results(folder) == found
        finally:
            os.seteuid(user)
            os.chmod(folder, 0o755)


def test_results_as_a_pandas_frame(files):
    pytest.importorskip("pandas")
    experiment = create(files, profile=PROFILE)
    run_all(experiment)
    frame = dsat.results_frame(files)
    assert list(frame["trial"]) == [trial.trial for trial in dsat.results(files)]


def test_a_training_without_deepspeed_is_tuned(tmp_path):
    """The example that trains with FSDP, end to end."""
    pytest.importorskip("torch")
    from conftest import ROOT, interpreter_in
    for name in ("train.py", "ds_config.json", "deepspeed.yaml"):
        shutil.copy(ROOT / "examples/fsdp" / name, tmp_path)
    interpreter_in(tmp_path / "deepspeed.yaml")
    done = subprocess.run(
        [os.environ.get("DSAT_PROGRAM", "dsat"), "random", "deepspeed.yaml", "--zero-stages", "2", "3",
         "--max-trials", "3", "--end-profile-step", "8", "--train-batch-size", "8", "--confirm", "0",
         "--out", "out"],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True,
        check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = dsat.results(tmp_path)
    assert [trial.state for trial in found] == ["succeeded"] * 3, done.stdout
    for trial in found[1:]:
        assert trial.zero_stage in (2, 3)
        assert trial.gflops_per_gpu > 0
        # Both are medians: their product is the batch if all steps take the same time, else more.
        batch = 2 * trial.micro_batch_size * trial.accumulation_steps
        assert batch - 0.6 <= trial.samples_per_s * trial.latency_ms / 1e3 <= 5 * batch
        assert trial.peak_mib > 10
    pick = json.loads((tmp_path / "out/ds_config.json").read_text())
    assert "autotuning" not in pick


def test_the_database_of_the_environment_is_the_default(files, monkeypatch):
    monkeypatch.setenv("DSAT_DB", str(files / "other.db"))
    experiment = dsat.Experiment.create("random", files / "deepspeed.yaml", profile=PROFILE,
                                        options=["--max-trials", "2", "--metric", "throughput"])
    run_all(experiment)
    assert (files / "other.db").exists()
    assert dsat.results() == dsat.results(files / "other.db")


@pytest.mark.parametrize("change, message", [(1, "newer than this package's"),
                                             (-1, "use the one that has made it")])
def test_a_database_of_another_version_is_refused(files, change, message):
    create(files, profile=PROFILE)
    with sqlite3.connect(files / "dsat.db") as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute(f"PRAGMA user_version = {version + change}")
    assert version == dsat._results._SCHEMA_VERSION
    with pytest.raises(ValueError, match=message):
        dsat.results(files / "dsat.db")


def test_a_name_means_the_experiment_that_dsat_takes_it_for(files):
    for _ in range(3):
        create(files, profile=PROFILE).ask()
    with sqlite3.connect(files / "dsat.db") as connection:
        connection.execute("UPDATE experiments SET method = 'check' WHERE id = 3")
        connection.execute("UPDATE experiments SET name = '1' WHERE id = 2")
    for name, number in (("told", 1), ("1", 1), (2, 2)):
        assert dsat.results(files, experiment=name) == dsat.results(files, experiment=number)
        assert {trial.experiment for trial in dsat.results(files, experiment=name)} == {number}


# The calls of a tracker that dsat makes, as files of calls.
MLFLOW = '''
import contextlib, json
def note(*what):
    with open("calls", "a") as file: file.write(json.dumps(what) + "\\n")
def start_run(run_name, nested):
    note("start", run_name, nested)
    return contextlib.closing(type("Run", (), {"close": lambda self: note("end")})())
def log_params(values): note("params", values)
def log_metrics(values): note("metrics", values)
def get_tracking_uri(): return "here"
'''
GROUPS = '''
import json
def note(*what):
    with open("calls", "a") as file: file.write(json.dumps(what) + "\\n")
def init(project, group, name, config): note("init", project, group, name, config)
def log(metrics): note("metrics", metrics)
def finish(): note("finish")
'''


def export(files, to, module=None):
    """Runs `dsat export --to` where the module is, and returns its output and the calls."""
    if not (files / "dsat.db").exists():
        run_all(create(files, profile=PROFILE))
    if module:
        (files / f"{to}.py").write_text(module)
    done = subprocess.run(
        [os.environ.get("DSAT_PROGRAM", "dsat"), "export", "told", "--to", to], cwd=files,
        env={**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
             "PYTHONPATH": str(files)},
        capture_output=True, text=True, check=False)
    calls = files / "calls"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return done, [json.loads(line) for line in lines]


def test_mlflow_gets_a_run_of_the_search_with_a_run_of_each_trial(files):
    done, calls = export(files, "mlflow", MLFLOW)
    assert done.returncode == 0, done.stderr
    found = dsat.results(files)
    assert done.stdout == f"mlflow: {len(found)} trials of experiment 1 in run told 1 at here\n"
    assert calls[0] == ["start", "told 1", True]
    assert calls[1][1]["method"] == "random" and calls[1][1]["metric"] == "throughput"
    names = [call[1] for call in calls if call[0] == "start"]
    assert names == ["told 1"] + [f"told 1 trial {trial.trial}" for trial in found]
    assert [call[0] for call in calls[3:7]] == ["start", "params", "metrics", "end"]
    assert calls[-2:] == [["end"], ["end"]]  # The last trial's run, and the parent's.
    best = next(call for call in calls if call[0] == "params" and call[1].get("is_best"))[1]
    expected = next(trial for trial in found if trial.is_best)
    assert best["trial"] == expected.trial and best["state"] == "succeeded"
    for pointer, value in expected.assignment.items():
        assert best[pointer[1:]] == value
    metrics = calls[calls.index(["params", best]) + 1][1]
    assert metrics["samples_per_s"] == expected.samples_per_s and "peak_mib" not in metrics


@pytest.mark.parametrize("to", ["wandb", "trackio"])
def test_other_trackers_get_a_group_of_runs(files, monkeypatch, to):
    done, calls = export(files, to, GROUPS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("in group told 1 of project dsat\n")
    assert calls[0][:4] == ["init", "dsat", "told 1", "told 1"]
    runs = len(dsat.results(files)) + 1
    assert [call[0] for call in calls] == ["init", "metrics", "finish"] * runs
    monkeypatch.setenv(f"{to.upper()}_PROJECT", "mine")
    assert export(files, to, GROUPS)[1][-3][1] == "mine"


def test_parquet_keeps_every_column(files):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    done, _ = export(files, "parquet")
    assert done.returncode == 0, done.stderr
    frame = pandas.read_parquet(files / "dsat-trials-1.parquet")
    found = dsat.results(files)
    assert list(frame.columns) == list(found.frame().columns)
    assert [json.loads(text) for text in frame["ds_config"]] == [
        trial.ds_config for trial in found]


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(files):
    done, _ = export(files, "mlflow", "import no_such_package")
    assert done.returncode == 1
    assert "has no no_such_package" in done.stderr
    assert "-m pip install mlflow" in done.stderr
    with pytest.raises(dsat.DsatError, match="no experiment 9"):
        dsat.export("parquet", 9, db=files / "dsat.db")
    with pytest.raises(dsat.DsatError, match="expected mlflow, wandb, trackio or parquet"):
        dsat.export("excel", db=files / "dsat.db")
