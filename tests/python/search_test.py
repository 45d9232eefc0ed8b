"""Searches from Python, with the real dsat and its built-in engine."""
import json
import os
import shutil
import signal
import threading

import dsat
import pytest

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("DSAT_PROGRAM", "dsat")) is None,
    reason="there is no dsat; set DSAT_PROGRAM to the path of the program")

# Many seconds.
LONG = {"method": "random", "max_trials": 200, "early_stopping": 200, "confirm": 0,
        "end_profile_step": 40}


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DSAT_DB", raising=False)
    (tmp_path / "ds_config.json").write_text(json.dumps(
        {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1},
         "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}))
    (tmp_path / "deepspeed.yaml").write_text("""
name: tiny <&>
entrypoint: builtin
resources: {device_memory: 300KiB}
hyperparameters:
  deepspeed_config: ds_config.json
  model: {type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 16, vocab_size: 256}
  data: {type: synthetic, seq_len: 16, vocab_size: 256}
""")
    return "deepspeed.yaml"


def test_a_search_returns_its_trials_and_its_answer(experiment, capsys):
    found = dsat.auto(experiment, method="grid", max_trials=4, confirm=1, zero_stages=[1, 2],
                      run_full_experiment=False, max_time="5m", out=None)
    assert found == dsat.results("dsat.db", 1)
    assert [trial.kind for trial in found[:2]] == ["profile", "submitted"]
    assert {trial.zero_stage for trial in found} <= {1, 2}
    assert found.best.is_best and found.best.trial == found.answer["best_trial"]
    with open("dsat-out/1/ds_config.json", encoding="utf-8") as file:
        assert found.ds_config == json.load(file)
    shown = capsys.readouterr()
    assert "experiment 1 (tiny <&>): grid, up to 4 trials" in shown.err
    assert "trial   1  as submitted" in shown.err
    assert shown.out == ""


def test_a_notebook_shows_one_table(experiment):
    page = dsat.auto(experiment, method="grid", max_trials=3, confirm=1, metric="throughput",
                     out="<out>")._repr_html_()
    assert page.count("<table>") == 1 and page.count("</table>") == 1
    assert "experiment 1 (tiny &lt;&amp;&gt;): " in page and "times as fast as submitted" in page
    assert "&lt;out&gt;" in page
    assert "<th>micro_batch_size</th>" in page and "<td>submitted</td>" in page
    assert page.count("font-weight") == 1  # The best trial.
    assert "<th>reason</th>" not in page  # All have succeeded.


def test_progress_is_called_once_with_each_trial(experiment, capsys):
    told = []
    found = dsat.auto(experiment, method="random", max_trials=4, confirm=0, progress=told.append)
    assert [(trial.trial, trial.state) for trial in told] == [
        (trial.trial, trial.state) for trial in found]
    shown = capsys.readouterr().err
    assert "experiment 1 (tiny" in shown and "\ntrial " not in shown


def test_an_interrupted_search_can_be_resumed(experiment, capsys):
    def interrupt(trial):
        if trial.trial == 1:
            signal.raise_signal(signal.SIGINT)  # As Ctrl-C, or the button of a notebook.

    with pytest.raises(KeyboardInterrupt):
        dsat.auto(experiment, **LONG, progress=interrupt)
    assert "Interrupted; nothing is lost: continue with dsat resume 1" in capsys.readouterr().err
    before = dsat.results()
    assert before[1].state == "succeeded" and len(before) < 200
    told = []
    found = dsat.resume(1, max_trials=len(before) + 2, progress=told.append)
    assert len(found) == len(before) + 2
    assert [trial.trial for trial in told[:2]] == [0, 1]
    assert threading.active_count() == 1


def test_a_failing_callback_ends_the_search(experiment):
    def fail(trial):
        raise ZeroDivisionError(trial.kind)

    with pytest.raises(ZeroDivisionError, match="profile"):
        dsat.auto(experiment, **LONG, progress=fail)
    assert len(dsat.results()) < 200
    dsat.resume("tiny <&>", max_trials=len(dsat.results()) + 1)


def test_errors_have_the_message_of_dsat(experiment):
    with pytest.raises(dsat.DsatError, match="max-trails.*did you mean --max-trials"):
        dsat.auto(experiment, max_trails=3)
    with pytest.raises(dsat.DsatError, match="other.yaml"):
        dsat.auto("other.yaml")
    with pytest.raises(dsat.DsatError, match="names no ds_config"):
        dsat.auto(["python3", "train.py", "--max-trials", "3"])
    with pytest.raises(dsat.DsatError, match="unknown command"):
        dsat.auto(experiment, method="autos")
    with pytest.raises(dsat.DsatError, match="no such program"):
        dsat.auto(experiment, program="no-such-dsat")
    text = open(experiment, encoding="utf-8").read()
    with open(experiment, "w", encoding="utf-8") as file:
        file.write(text.replace("300KiB", "1KiB"))
    with pytest.raises(dsat.DsatError, match="experiment failed: .*; logs in "):
        dsat.auto(experiment, max_trials=3)
