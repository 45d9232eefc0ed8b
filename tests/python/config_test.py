"""Configs of experiments and trials."""
import json
import subprocess
import sys
from pathlib import Path

import dsat
import pytest
from dsat._config import config_of_trial, micro_batch_of


def test_overrides_are_merged_section_by_section(tmp_path):
    base = {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 1, "eps": 2}}}
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(base))
    over = {"train_batch_size": 16, "optimizer": {"params": {"lr": 0.005}}, "fp16": {}}
    expected = {"train_batch_size": 16, "fp16": {},
                "optimizer": {"type": "Adam", "params": {"lr": 0.005, "eps": 2}}}
    assert dsat.overwrite_deepspeed_config(path, over) == expected
    assert dsat.overwrite_deepspeed_config(base, over) == expected
    assert base["optimizer"]["params"]["lr"] == 1


def test_hparams_name_the_config_and_its_overrides(tmp_path):
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"stage": 1}}')
    hparams = {"deepspeed_config": "ds_config.json",
               "overwrite_deepspeed_args": {"zero_optimization": {"stage": 3}}}
    assert dsat.get_ds_config_from_hparams(hparams, tmp_path) == {"zero_optimization": {"stage": 3}}


def test_hparams_without_a_config_are_refused(tmp_path):
    with pytest.raises(KeyError, match="deepspeed_config is missing"):
        dsat.get_ds_config_from_hparams({}, tmp_path)


def test_a_config_that_is_no_json_object_is_named(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text("[1]")
    with pytest.raises(ValueError, match="ds_config.json: is a list; expected a JSON object"):
        dsat.overwrite_deepspeed_config(path, {})
    path.write_text("{")
    with pytest.raises(ValueError, match="ds_config.json: not JSON"):
        dsat.overwrite_deepspeed_config(path, {})


def test_a_config_may_have_comments_and_trailing_commas(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text('\ufeff{"a": "x // y,}#", // one\n /* two\n */ "b": [1, 2, ], # three\n}',
                    encoding="utf-8")
    assert dsat.overwrite_deepspeed_config(path, {}) == {"a": "x // y,}#", "b": [1, 2]}


def test_what_names_no_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="deepspeed_config is 5; expected the path"):
        dsat.get_ds_config_from_hparams({"deepspeed_config": 5}, tmp_path)
    with pytest.raises(ValueError, match="'stage_2_offload', a strategy"):
        dsat.get_ds_config_from_hparams({"deepspeed_config": "stage_2_offload"}, tmp_path)


def test_in_a_trial_the_trials_config_counts(trial_config, tmp_path):
    trial_config({"train_micro_batch_size_per_gpu": 6})
    assert dsat.get_ds_config_from_hparams({}, tmp_path)["train_micro_batch_size_per_gpu"] == 6
    found = dsat.get_ds_config({"train_batch_size": 8, "steps_per_print": 10})
    assert found == {"train_micro_batch_size_per_gpu": 6, "steps_per_print": 10}
    running = dsat.trial()
    assert (running.id, running.micro_batch_size, running.accumulation_steps) == (5, 6, None)
    assert running.measures and not running.is_profile
    assert (running.start_profile_step, running.end_profile_step) == (1, 4)


def test_outside_of_a_trial_the_own_config_counts(monkeypatch):
    monkeypatch.delenv("DSAT_DS_CONFIG", raising=False)
    assert dsat.trial() is None
    assert dsat.get_ds_config({"train_batch_size": 8}) == {"train_batch_size": 8}


def test_hugging_face_arguments_follow_the_overrides(tmp_path, monkeypatch):
    monkeypatch.delenv("DSAT_DS_CONFIG", raising=False)
    (tmp_path / "ds_config.json").write_text(
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto"}')
    hparams = {"deepspeed_config": "ds_config.json"}
    args = ["--per-device-train-batch-size=1", "--deepspeed", "ds_config.json"]
    assert dsat.get_hf_args_with_overwrites(args, hparams, tmp_path) == args
    hparams["overwrite_deepspeed_args"] = {"train_micro_batch_size_per_gpu": 4}
    changed = dsat.get_hf_args_with_overwrites(args, hparams, tmp_path)
    assert changed[:2] == ["--per-device-train-batch-size=4", "--deepspeed"]
    assert json.loads(Path(changed[2]).read_text()) == dsat.get_ds_config_from_hparams(
        hparams, tmp_path)
    assert json.loads((tmp_path / "ds_config.json").read_text())[
        "train_micro_batch_size_per_gpu"] == 2
    hparams["overwrite_deepspeed_args"] = {"gradient_accumulation_steps": 3}
    assert dsat.get_hf_args_with_overwrites(["--lr", "1"], hparams, tmp_path) == [
        "--lr", "1", "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "3"]
    assert args[0] == "--per-device-train-batch-size=1"


def test_the_merged_config_for_hugging_face_exists_until_the_process_ends(tmp_path, monkeypatch):
    monkeypatch.delenv("DSAT_DS_CONFIG", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PYTHONPATH", str(Path(dsat.__file__).parents[1]))
    (tmp_path / "tmp").mkdir()
    code = """
import dsat, json, os
from pathlib import Path
Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": 1, "overlap_comm": True}}))
hparams = {"deepspeed_config": "ds.json",
           "overwrite_deepspeed_args": {"zero_optimization": {"stage": 3}}}
assert dsat.get_hf_args_with_overwrites(["--lr", "1"], hparams) == ["--lr", "1"]
name = dsat.get_hf_args_with_overwrites(["--deepspeed=ds.json"], hparams)[0].partition("=")[2]
if os.fork() == 0:
    raise SystemExit
os.wait()
print(Path(name).read_text())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, text=True,
                          stdout=subprocess.PIPE)
    assert json.loads(done.stdout) == {"zero_optimization": {"stage": 3, "overlap_comm": True}}
    assert list((tmp_path / "tmp").iterdir()) == []


def test_hugging_face_arguments_follow_the_trial(trial_config):
    path = trial_config({"train_micro_batch_size_per_gpu": 6, "gradient_accumulation_steps": 2})
    args = ["--per_device_train_batch_size", "1", "--deepspeed", "ds_config.json"]
    assert dsat.get_hf_args_with_overwrites(args, {}) == [
        "--per_device_train_batch_size", "6", "--deepspeed", str(path),
        "--gradient_accumulation_steps", "2"]


def test_a_trials_section_replaces_the_scripts_and_others_stay():
    given = {"zero_optimization": {"stage": 3, "offload_param": {}}, "fp16": {"enabled": True},
             "optimizer": {"type": "SGD", "params": {"lr": 1}}}
    trial = {"zero_optimization": {"stage": 1}, "optimizer": {"type": "Adam"}}
    assert config_of_trial(given, trial) == {
        "zero_optimization": {"stage": 1}, "fp16": {"enabled": True}, "optimizer": {"type": "Adam"}}
    assert config_of_trial(given, trial, by_trainer=True) == {
        "zero_optimization": {"stage": 1}, "fp16": {"enabled": True},
        "optimizer": {"type": "SGD", "params": {"lr": 1}}}
    assert given["zero_optimization"]["stage"] == 3


def test_auto_in_the_trials_config_is_the_scripts_value():
    given = {"train_micro_batch_size_per_gpu": 8, "optimizer": {"params": {"lr": 0.1}}}
    trial = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2,
             "optimizer": {"params": {"lr": "auto", "eps": "auto"}}}
    assert config_of_trial(given, trial) == {
        "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2,
        "optimizer": {"params": {"lr": 0.1}}}


def test_batch_sizes_that_the_trial_does_not_mention_do_not_count():
    given = {"train_batch_size": 32, "gradient_accumulation_steps": 4}
    assert config_of_trial(given, {"train_micro_batch_size_per_gpu": 2}) == {
        "train_micro_batch_size_per_gpu": 2}
    assert config_of_trial(given, {"zero_optimization": {}}) == {**given, "zero_optimization": {}}


def test_ranks_that_share_samples_do_not_divide_the_batch():
    config = {"train_batch_size": 16, "tensor_parallel": {"autotp_size": 2}}
    assert micro_batch_of(config, 8) == 4
    assert micro_batch_of({**config, "sequence_parallel_size": 2, "pipeline": {"stages": 2}}, 8) == 16
    assert micro_batch_of({"train_batch_size": 16, "gradient_accumulation_steps": 2}, 8) == 1
