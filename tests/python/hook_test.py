"""The import hook with the real DeepSpeed and the real trainers, on ranks on the CPU."""
import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, free_port

pytest.importorskip("deepspeed")

ADAMW = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
RAN = {"train_micro_batch_size_per_gpu": 6, "gradient_accumulation_steps": 2,
       "train_batch_size": 24, "zero_stage": 2, "reduce_bucket_size": 1000000,
       "allgather_bucket_size": 500000000, "data_parallel_size": 2}


def expect_trial(trial, codes, ran):
    """The ranks ran with the trial's config, measured it, and fed its micro-batches."""
    assert codes == [0] * len(codes), trial.log()
    for rank in range(len(codes)):
        found = trial.read(f"hook-rank{rank}.json")
        assert found["config_applied"] is True
        assert found["world_size"] == len(codes)
        assert found["ran"] == ran
        assert found["peak_bytes"] > 1e6
        assert found["num_alloc_retries"] == 0
        assert 0 <= found["data_wait_share"] <= 1
        assert found.get("forward_batch_sizes", [6]) == [6]
        assert found["samples"] == ran["train_batch_size"]
        passes = [found[f"{name}_seconds"] for name in ("step", "forward", "backward", "update")]
        assert [len(times) for times in passes] == [3] * 4
        assert all(0 < step and min(parts) > 0 and sum(parts) < 1.05 * step
                   for step, *parts in zip(*passes)), passes
        assert found["flops"] > 0
    found = trial.read("hook-rank0.json")
    assert found["num_steps"] == 5
    return found


def test_a_dict_in_the_code_is_replaced_and_its_loader_follows(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    example = ROOT / "examples/dict-config/train.py"
    found = expect_trial(run_trial, run_trial.run(example), RAN)
    assert found["engine"] == "DeepSpeedEngine"
    assert found["on_cpu"]
    assert len(found["losses"]) == 5
    assert found["losses"][0] == pytest.approx(2.3, abs=0.5)  # Ten classes.
    assert found["changed_script"] is True  # Its loader has another batch size.


def test_short_steps_are_measured_until_all_ranks_know_their_rate(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    assert run_trial.run(ROOT / "examples/dict-config/train.py", DSAT_FIXED_STEPS="0") == [0, 0]
    first, second = (run_trial.read(f"hook-rank{rank}.json") for rank in range(2))
    assert len(first["losses"]) == len(second["losses"]) > 5
    assert first["num_steps"] == len(first["losses"])
    seconds = first["step_seconds"]
    assert first["first_counted_step"] + len(seconds) == len(first["losses"])
    assert first["samples"] == 24
    assert len(first["forward_seconds"]) == len(seconds)


@pytest.mark.parametrize("script", ["dict_config.py", "reports.py"])
def test_a_script_that_ends_before_its_rate_is_known_well_is_measured_all_the_same(
        run_trial, script):
    run_trial.write_config(optimizer=ADAMW, train_batch_size=12)
    assert run_trial.run(script, "few", ranks=1, DSAT_FIXED_STEPS="0") == [0]
    found = run_trial.read("hook-rank0.json")
    assert found["samples"] == 12
    assert len(found["losses"]) == 9
    assert found["first_counted_step"] + len(found["step_seconds"]) == 9


def test_a_script_that_ends_in_a_longer_run_is_measured_all_the_same(run_trial):
    run_trial.write_config(optimizer=ADAMW, train_batch_size=12)
    longer = {"DSAT_END_PROFILE_STEP": "20", "DSAT_SUFFICIENT_STEP": "4"}
    assert run_trial.run("reports.py", "few", ranks=1, **longer) == [0]
    found = run_trial.read("hook-rank0.json")
    assert len(found["losses"]) == 9 and len(found["step_seconds"]) == 7
    # The profile's step is 1, and the first one that counts is 2.
    assert found["first_counted_step"] == 2


@pytest.mark.parametrize("script", ["dict_config.py", "reports.py"])
def test_a_script_that_fails_before_its_rate_is_known_is_not_measured(run_trial, script):
    run_trial.write_config(optimizer=ADAMW, train_batch_size=12)
    assert run_trial.run(script, "few", "fails", ranks=1, DSAT_FIXED_STEPS="0") == [1]
    assert "RuntimeError: out of memory" in run_trial.log()
    assert "step_seconds" not in run_trial.read("hook-rank0.json")


def test_an_old_deepspeed_trains_with_the_trials_config(run_trial):
    old = next(ROOT.glob("build-venv/deepspeed-*/complete"), None)
    if old is None:
        pytest.skip("no old DeepSpeed; scripts/setup --tests installs one")
    run_trial.write_config(optimizer=ADAMW)
    path = os.pathsep.join([run_trial.environment(0, 1, 0)["PYTHONPATH"], str(old.parent)])
    found = expect_trial(run_trial, run_trial.run("old_deepspeed.py", PYTHONPATH=path), RAN)
    assert len(found["losses"]) == 5
    assert f"version={old.parent.name.split('-')[1]}" in run_trial.log()


def test_a_loader_out_of_reach_is_named_with_the_way_out(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    assert run_trial.run("dict_config.py", "early", ranks=1) == [1]
    assert "the script feeds batches of 4" in run_trial.log()
    assert "dsat.get_ds_config(config)" in run_trial.log()


def test_steps_with_the_last_batch_of_an_epoch_are_reported(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    # The code of a script that is measured is not seen.
    assert run_trial.run("dict_config.py", "short", ranks=1) == [0], run_trial.log()
    found = run_trial.read("hook-rank0.json")
    assert found["forward_batch_sizes"] == [3, 6]
    assert found["partial_steps"] == [1, 2, 4]  # Batches of 6, 6, 3 and again; a step has two.


def test_evaluations_are_no_batches_of_the_training(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    assert run_trial.run("dict_config.py", "evaluates", ranks=1) == [0]
    found = run_trial.read("hook-rank0.json")
    assert found["forward_batch_sizes"] == [6]
    assert found["partial_steps"] == []
    assert len(found["losses"]) == 5


def test_a_file_that_the_script_opens_is_replaced(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    (run_trial.folder / "my_config.json").write_text(
        '{"train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 0}}')
    found = expect_trial(run_trial, run_trial.run("opens_file.py", ranks=1),
                         {**RAN, "train_batch_size": 12, "data_parallel_size": 1})
    assert found["data_wait_share"] > 0.5  # A step waits for twelve samples of 50 ms.


def test_hugging_face_gets_arguments_that_agree_with_the_trial(run_trial):
    pytest.importorskip("transformers")
    run_trial.write_config(optimizer={"type": "AdamW", "params": {"lr": 3e-4}})
    found = expect_trial(run_trial, run_trial.run("hugging_face.py"), RAN)
    assert len(found["losses"]) == 5
    assert found["changed_script"] is True
    # The loss is that of the step before the last, which the hooks do not end; the mean over the
    # ranks.
    assert found["metrics"]["loss"] == pytest.approx(found["losses"][-2], rel=0.1)


def test_hugging_faces_callback_reports_losses_without_deepspeed(run_trial):
    pytest.importorskip("transformers")
    run_trial.write_config()
    assert run_trial.run("hugging_face.py", "plain", ranks=1) == [0], run_trial.log()
    found = run_trial.read("hook-rank0.json")
    assert len(found["losses"]) == 5
    assert found["losses"][0] == pytest.approx(found["metrics"]["loss"], rel=0.5)


def test_an_engine_without_an_optimizer_keeps_its_config(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    found = expect_trial(run_trial, run_trial.run("dict_config.py", "reference"), RAN)
    assert len(found["losses"]) == 5
    assert "reference 8 None" in run_trial.log()


def test_the_first_engine_that_trains_is_measured(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    found = expect_trial(run_trial, run_trial.run("dict_config.py", "critic"), RAN)
    assert len(found["losses"]) == 5  # The critic's steps do not count.
    assert "critic 6" in run_trial.log()  # Its loader is the same one.


def test_a_local_rank_that_is_not_passed_is_named(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    launched = {"RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port())}
    assert run_trial.run("dict_config.py", "local_rank", ranks=1, **launched) == [1]
    assert "start it by `deepspeed` in place of `python`" in run_trial.log()


def test_a_rank_within_another_one_is_refused(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    assert run_trial.run("dict_config.py", ranks=1, DSAT_RANK="1") == [1]
    assert "this is rank 0 of 1, within rank 1" in run_trial.log()
    assert not (run_trial.folder / "hook-rank0.json").exists()


def test_measured_trials_leave_the_checkpoints_of_the_user_alone(run_trial):
    run_trial.write_config(optimizer=ADAMW)
    assert run_trial.run("dict_config.py", "saves", ranks=1) == [0], run_trial.log()
    assert not (run_trial.folder / "checkpoints").exists()
    run_trial.write_config(measure="", optimizer=ADAMW)
    assert run_trial.run("dict_config.py", "saves", "few", ranks=1) == [0], run_trial.log()
    assert (run_trial.folder / "checkpoints/latest").exists()  # By a full run.


def test_hugging_faces_checkpoints_are_left_alone_and_not_continued(run_trial):
    pytest.importorskip("transformers")
    run_trial.write_config(optimizer={"type": "AdamW", "params": {"lr": 3e-4}})
    mine = run_trial.folder / "hugging_face_out/checkpoint-1/mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("the user's")
    found = expect_trial(run_trial, run_trial.run("hugging_face.py", "saves"), RAN)
    assert len(found["losses"]) == 5
    assert [path.name for path in mine.parent.parent.iterdir()] == ["checkpoint-1"]
    assert mine.exists()


def test_a_trainer_that_sits_on_hugging_faces_gets_the_trials_batches(run_trial):
    pytest.importorskip("trl")
    run_trial.write_config()
    found = expect_trial(run_trial, run_trial.run("use_trl.py", ranks=1),
                         {**RAN, "train_batch_size": 12, "data_parallel_size": 1})
    assert len(found["losses"]) == 5


def test_accelerate_gets_the_trials_stage_accumulation_and_batches(run_trial):
    pytest.importorskip("accelerate")
    run_trial.write_config()
    found = expect_trial(run_trial, run_trial.run("use_accelerate.py"), RAN)
    assert len(found["losses"]) == 5
    assert found["changed_script"] is True
    assert found["metrics"].keys() == {"my_loss"}


@pytest.mark.parametrize("how", ["", "cli"])
def test_lightning_gets_the_trials_accumulation_and_batches(run_trial, how):
    pytest.importorskip("lightning")
    if how == "cli":
        pytest.importorskip("jsonargparse")  # LightningCLI imports it.
    run_trial.write_config()
    found = expect_trial(run_trial, run_trial.run("use_lightning.py", how), RAN)
    assert len(found["losses"]) == 5
    assert found["changed_script"] is True
    assert found["metrics"]["my_loss"] == pytest.approx(found["losses"][-2], rel=0.1)


def test_lightnings_callback_reports_batches_and_losses_without_deepspeed(run_trial):
    pytest.importorskip("lightning")
    run_trial.write_config()
    assert run_trial.run("use_lightning.py", "plain", "accumulates", ranks=1) == [0], (
        run_trial.log())
    found = run_trial.read("hook-rank0.json")
    assert len(found["losses"]) == 5
    assert found["losses"][-1] == pytest.approx(found["metrics"]["my_loss"], rel=0.1)
    assert found["forward_batch_sizes"] == [6]
    assert found["ran"] == {"gradient_accumulation_steps": 2}


@pytest.mark.parametrize("measure, written", [("steps", "step_seconds"), ("profile", "profile")])
@pytest.mark.parametrize("how", ["plainly", "link", "folder", "parent", "unseen",
                                 "helper", "trial", "nothing"])
def test_a_script_that_says_no_samples_has_to_read_the_config(
        run_trial, how, measure, written):
    run_trial.write_config(measure)
    code = run_trial.run("reports.py", f"reads={how}", ranks=1)
    if how == "nothing":
        assert code == [1]
        assert "RuntimeError: dsat.report(): nothing shows that the script" in run_trial.log()
        assert not (run_trial.folder / "hook-rank0.json").exists()
    else:
        assert code == [0], run_trial.log()
        assert written in run_trial.read("hook-rank0.json")


def test_lightnings_accumulation_is_refused_unless_the_config_has_it(run_trial):
    pytest.importorskip("lightning")
    run_trial.write_config("profile", gradient_accumulation_steps=1)
    assert 1 in run_trial.run("use_lightning.py", "accumulates")
    assert "set overwrite_deepspeed_args: {gradient_accumulation_steps: 2}" in run_trial.log()
    assert run_trial.run("use_lightning.py", "accumulates",
                         DSAT_SUBMITTED_ACCUMULATION="2") == [0, 0], run_trial.log()
    assert run_trial.read("hook-rank0.json")["profile"]["num_params"] > 1000


PIPELINE = {"gradient_accumulation_steps": 3, "zero_optimization": {"stage": 1}, "optimizer": ADAMW}


def test_a_pipeline_is_measured(run_trial):
    run_trial.write_config(**PIPELINE)
    found = expect_trial(run_trial, run_trial.run("pipeline.py"),
                         {**RAN, "gradient_accumulation_steps": 3, "train_batch_size": 18,
                          "zero_stage": 1, "data_parallel_size": 1,
                          "reduce_bucket_size": 500000000})
    assert found["engine"] == "PipelineEngine"
    assert len(found["losses"]) == 5
    # Two layers of 16 x 16, six samples, three micro-batches; the first layer has no gradient of
    # its input.
    assert found["flops"] == pytest.approx(3 * 6 * 2 * 16 * 16 * 5, rel=0.05)


def test_a_batch_that_the_ranks_of_a_pipeline_share_is_refused(run_trial):
    run_trial.write_config(**{**PIPELINE, "train_batch_size": 36})
    assert run_trial.run("pipeline.py") == [1, 1]
    assert "train_batch_size 36, but the script trains on 18 samples a step" in run_trial.log()


def test_partial_batches_of_a_pipeline_are_reported(run_trial):
    run_trial.write_config(**{**PIPELINE, "gradient_accumulation_steps": 2})
    assert run_trial.run("pipeline.py", "short", ranks=1) == [0], run_trial.log()
    found = run_trial.read("hook-rank0.json")
    assert found["forward_batch_sizes"] == [3, 6]
    assert found["partial_steps"] == [1, 2, 4]


def test_the_profiling_trial_of_a_pipeline_counts_all_stages(run_trial):
    run_trial.write_config("profile", **PIPELINE)
    assert run_trial.run("pipeline.py") == [0, 0], run_trial.log()
    profile = run_trial.read("hook-rank0.json")["profile"]
    assert profile["num_params"] == profile["trainable_num_params"] == 4 * (16 * 16 + 16)
    assert profile["activation_bytes_per_sample"] >= 0


def test_ranks_that_share_tensors_train_on_the_same_samples(run_trial):
    pytest.importorskip("transformers")
    run_trial.write_config(optimizer=ADAMW, tensor_parallel={"autotp_size": 2})
    ran = {**RAN, "train_batch_size": 12, "data_parallel_size": 1}
    expect_trial(run_trial, run_trial.run("shares_tensors.py"), ran)


def test_a_full_run_trains_to_its_end_with_the_pick(run_trial):
    run_trial.write_config(measure="", optimizer=ADAMW)
    assert run_trial.run("dict_config.py", "partitioned", ranks=1) == [0], run_trial.log()
    found = run_trial.read("hook-rank0.json")
    assert found["ran"]["zero_stage"] == 2
    assert not {"losses", "step_seconds", "num_steps"} & found.keys()


def python(trial, code, *path, **environment):
    env = {**trial.environment(0, 1, 0), **environment}
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], *map(str, path)])
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True,
                          check=False)


def test_the_sitecustomize_that_the_hook_hides_runs(run_trial, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the own one')")
    done = python(run_trial, "import sitecustomize; print(sitecustomize.__file__)", tmp_path)
    assert done.stdout == f"the own one\n{tmp_path}/sitecustomize.py\n"
    assert done.stderr == ""


def test_of_the_hooks_of_two_installations_the_first_one_counts(run_trial, tmp_path):
    shutil.copytree(ROOT / "python/hook", tmp_path / "hook")
    (tmp_path / "sitecustomize.py").write_text("print('the own one')")
    done = python(run_trial, "import sys; print([type(f).__name__ for f in sys.meta_path].count("
                  "'_Finder'))", tmp_path / "hook", tmp_path)
    assert (done.stdout, done.stderr) == ("the own one\n1\n", "")


def test_a_training_that_nobody_measures_is_ended(run_trial):
    run_trial.write_config()
    done = python(run_trial, """
import torch
from dsat._hook import unseen
unseen.LEAST_SECONDS = 0
optimizer = torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1)
for step in range(30):
    optimizer.step()
    print("took", step)
""")
    assert done.returncode == 1
    assert done.stdout.endswith("took 18\n")
    assert "UnreachableError: dsat: the script has taken 20 optimizer steps" in done.stderr


def test_python_without_deepspeed_loads_nothing_of_dsat(run_trial):
    done = python(run_trial, "import sys; print([m for m in sys.modules if 'dsat' in m])")
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("end, freed", [("dsat._trial.note_result()", ""), ("pass", "freed\n")])
def test_a_measured_process_ends_before_its_modules_are_freed(run_trial, end, freed):
    run_trial.write_config()
    done = python(run_trial, f"""
import atexit, dsat._trial
class Module:
    def __del__(self):
        print("freed")
module = Module()
atexit.register(print, "handler")
{end}
""")
    assert done.stdout == "handler\n" + freed
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_process_that_a_rank_forks_writes_no_file_of_the_rank(run_trial):
    run_trial.write_config()
    done = python(run_trial, """
import dsat, os
dsat.log({"accuracy": 0.5})
if os.fork() == 0:
    raise SystemExit
os.wait()
print(os.listdir(os.environ["DSAT_TRIAL_DIR"]))
""")
    assert done.stdout == "['ds_config.json']\n"
    assert (run_trial.folder / "hook-rank0.json").exists()


def test_outside_of_a_trial_nothing_is_changed(run_trial):
    done = python(run_trial, "import sys; print(len(sys.meta_path))", DSAT_DS_CONFIG="")
    plain = subprocess.run([sys.executable, "-c", "import sys; print(len(sys.meta_path))"],
                           capture_output=True, text=True, check=False)
    assert done.stdout == plain.stdout


def test_an_error_of_the_hook_is_reported_and_does_not_break_the_import(run_trial, tmp_path):
    (tmp_path / "deepspeed.py").write_text("answer = 42")
    done = python(run_trial, "import deepspeed; print(deepspeed.answer, deepspeed.__spec__.loader)",
                  tmp_path)
    assert done.stdout.startswith("42 <_frozen_importlib_external.SourceFileLoader")
    assert done.stderr.startswith("dsat: the hook for deepspeed failed, the script continues without")
    assert done.stderr.count("\n") == 1
