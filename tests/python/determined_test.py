"""Code that was written for Determined's API, in ranks of a trial and of a full run."""
import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, SCRIPTS

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

OPTIMIZER = {"type": "AdamW", "params": {"lr": 0.1, "torch_adam": True}}
EXPERIMENT = {"searcher": {"metric": "val_loss", "max_length": {"batches": 6}},
              "min_validation_period": {"batches": 4}, "min_checkpoint_period": {"batches": 2}}


class ClassRun:
    """Runs linear_trial.py as dsat does."""

    def __init__(self, trial):
        self.trial = trial

    def run(self, test, measure="", name="LinearTrial", ranks=2, settings=(), trains=None,
            **experiment):
        self.trial.write_config(measure, **{"train_micro_batch_size_per_gpu": 2,
                                            "optimizer": OPTIMIZER,
                                            "zero_optimization": {"stage": 1}, **dict(settings)})
        config = self.trial.read("ds_config.json")
        (self.trial.folder / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 5}')
        hparams = {"test": test, "deepspeed_config": "ds.json", "overwrite_deepspeed_args": config,
                   "policy": test}
        return self.trial.run("run_class.py", *trains or ("--trial", f"linear_trial:{name}"),
                              ranks=ranks,
                              DSAT_HPARAMS=json.dumps(hparams),
                              DSAT_EXPERIMENT=json.dumps({**EXPERIMENT, **experiment}))

    def fed(self, rank, kind="training"):
        """The numbers of the samples of each micro-batch."""
        return [json.loads(line.split(":")[1].rsplit(" ", 1)[0])
                for line in self.trial.log(rank).splitlines()
                if line.startswith("fed:") and line.endswith(kind)]

    def expect_failure(self, test, words, name="LinearTrial", **experiment):
        shutil.rmtree(self.trial.folder / "checkpoints", ignore_errors=True)
        assert 0 not in self.run(test, name=name, **experiment)
        assert any(words in self.trial.log(rank) for rank in range(2)), self.trial.log()

    def result(self):
        return self.trial.read("hook-rank0.json")["result"]


@pytest.fixture
def class_run(run_trial):
    return ClassRun(run_trial)


BY_TRAINER = [str(SCRIPTS / "use_trainer.py")]


def test_a_trainer_of_the_guides_trains_validates_saves_and_goes_on(class_run):
    checkpoints = class_run.trial.folder / "checkpoints"
    assert class_run.run("none", trains=BY_TRAINER) == [0, 0], class_run.trial.log()
    log = class_run.trial.log()
    # 48 samples are six batches, and the file's lengths do not count.
    assert class_run.result()["steps"] == 6 and len(class_run.fed(0)) == 12
    assert "validation after 4 batches: val_loss" in log and "after 6 batches: val_loss" in log
    assert [path.name for path in checkpoints.iterdir()] == ["batch-00000006"]
    assert class_run.run("none", trains=BY_TRAINER) == [0, 0], class_run.trial.log()
    assert "dsat: continuing from" in class_run.trial.log() and not class_run.fed(0)
    shutil.rmtree(checkpoints)
    assert class_run.run("all", trains=BY_TRAINER) == [0, 0], class_run.trial.log()
    assert {"batch-00000006"} <= {path.name for path in checkpoints.iterdir()}
    assert "batch-00000004" in class_run.trial.log()


def test_a_trial_measures_what_a_trainer_trains(class_run):
    assert class_run.run("none", "steps", trains=BY_TRAINER) == [0, 0], class_run.trial.log()
    assert len(class_run.trial.read("hook-rank0.json")["step_seconds"]) == 3
    assert not (class_run.trial.folder / "checkpoints").exists()


def test_a_full_run_validates_saves_and_goes_on_as_if_it_had_never_ended(class_run):
    assert class_run.run("whole") == [0, 0], class_run.trial.log()
    whole, log = class_run.result(), class_run.trial.log()
    assert whole["steps"] == 6
    assert "validation after 4 batches: val_loss" in log
    assert "validation after 6 batches: val_loss" in log
    assert "the metric 'all' of train_batch() is left out" in log
    # 48 samples are six batches of two ranks, two micro-batches and two samples: one epoch.
    fed = class_run.fed(0) + class_run.fed(1)
    assert len(fed) == 24
    assert sorted(sum(fed, [])) == list(range(48))
    evaluated = class_run.fed(0, "evaluation") + class_run.fed(1, "evaluation")
    assert sorted(sum(evaluated[:5] + evaluated[10:15], [])) == list(range(20))
    assert "validated: ['last', 'val_loss'] epochs: 1" in log
    last = whole["checkpoint"]
    assert last.endswith("/checkpoints/batch-00000006")
    assert json.loads(open(f"{last}/metadata.json").read()) == {
        "steps_completed": 6, "searcher_metric": whole["value"]}

    class_run.trial.folder = class_run.trial.folder / "again"
    class_run.trial.folder.mkdir()
    assert class_run.run("stops") == [0, 0], class_run.trial.log()
    assert class_run.result()["steps"] == 3
    begin = [class_run.fed(rank) for rank in range(2)]
    assert class_run.run("whole") == [0, 0], class_run.trial.log()
    assert "continuing from" in class_run.trial.log()
    assert sorted(sum(begin[0] + begin[1] + class_run.fed(0) + class_run.fed(1), [])) == list(
        range(48))
    assert class_run.result()["value"] == pytest.approx(whole["value"], rel=1e-5)
    assert "epochs: 1" in class_run.trial.log()  # The callback's state came back.


def test_an_interrupt_saves_a_checkpoint(class_run):
    assert class_run.run("preempted", min_checkpoint_period=0) == [0, 0], class_run.trial.log()
    assert (class_run.trial.folder / "checkpoints/batch-00000003/metadata.json").exists()
    assert "validation" not in class_run.trial.log()


@pytest.mark.parametrize("test, name", [
    ("", "OwnGroupTrial"), ("manual", "LinearTrial"), ("two_engines", "LinearTrial"),
    ("own_loader", "LinearTrial")])
def test_a_class_is_measured_like_every_script(class_run, test, name):
    assert class_run.run(test, "steps", name) == [0, 0], class_run.trial.log()
    for rank in range(2):
        found = class_run.trial.read(f"hook-rank{rank}.json")
        assert found["ran"]["data_parallel_size"] == 2
        assert found["ran"]["gradient_accumulation_steps"] == 2
        assert found["forward_batch_sizes"] == [2]
        assert found["samples"] == 8
        assert len(found["losses"]) == 5
        assert len(found["step_seconds"]) == 3
        assert found["changed_script"] is True
    assert not (class_run.trial.folder / "checkpoints").exists()
    disjoint = set(sum(class_run.fed(0), [])).isdisjoint(sum(class_run.fed(1), []))
    assert disjoint == (test != "own_loader")


def test_a_pipeline_gets_its_data_from_the_driver(class_run):
    settings = {"zero_optimization": {"stage": 0}, "gradient_accumulation_steps": 2}
    assert class_run.run("", name="PipelineTrial", settings=settings) == [0, 0], (
        class_run.trial.log())
    assert class_run.result()["steps"] == 6
    assert class_run.run("", "steps", name="PipelineTrial", settings=settings) == [0, 0]
    found = class_run.trial.read("hook-rank0.json")
    assert found["engine"] == "PipelineEngine"
    assert found["samples"] == 4
    assert found["num_steps"] == 5


def test_a_rank_that_the_model_parallel_unit_gives_no_data_has_no_iterator(class_run):
    assert class_run.run("model_parallel") == [0, 0], class_run.trial.log(1)
    assert class_run.fed(1)[0] == [0, 0]
    assert len(set(sum(class_run.fed(0), []))) == 24  # None of the 48 samples comes twice.
    assert class_run.result()["steps"] == 6


def test_what_a_class_does_wrong_is_named(class_run):
    class_run.expect_failure("bad_metrics", "train_batch() returned (tensor(")
    class_run.expect_failure("other_names", "evaluate_batch() returned ['other'] for batch 1")
    class_run.expect_failure("too_few", "train_batch() has run 1 of 2 micro-batches of a step")
    class_run.expect_failure("foreign_loader", "disable_dataset_reproducibility_checks()")
    class_run.expect_failure("", "context.wrap_model_engine()", name="NoEngineTrial")
    class_run.expect_failure("", "linear_trial has no class 'Trial'", name="Trial")
    class_run.expect_failure("", "searcher.metric is 'accuracy', but the metrics of the validation "
                             "are val_loss, last",
                             searcher={"metric": "accuracy", "max_length": 1})


def test_a_core_api_loop_is_measured_and_goes_on_in_a_full_run(run_trial):
    def run(measure, *arguments):
        run_trial.write_config(measure, train_micro_batch_size_per_gpu=2, optimizer=OPTIMIZER)
        codes = run_trial.run("core_loop.py", *arguments,
                              DSAT_HPARAMS='{"checkpoint_rate": 3, "deepspeed_config": "x"}',
                              DSAT_EXPERIMENT=json.dumps(EXPERIMENT))
        assert codes == [0, 0], run_trial.log()
        return run_trial.read("hook-rank0.json")

    found = run("steps")
    assert len(found["losses"]) == 5
    assert found["samples"] == 8
    assert not (run_trial.folder / "checkpoints").exists()
    assert run("", "stop")["result"]["checkpoint"].endswith("batch-00000003")
    result = run("")["result"]
    assert "continues after 3" in run_trial.log()
    assert result["checkpoint"].endswith("batch-00000006")
    assert 0 < result["value"] < 1


def test_the_command_of_the_module_trains_by_hand(tmp_path, extensions):
    pytest.importorskip("yaml")
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
              "optimizer": OPTIMIZER}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    (tmp_path / "deepspeed.yaml").write_text(
        "searcher: {metric: val_loss, max_length: {epochs: 1}}\nhyperparameters:\n"
        "  {deepspeed_config: ds.json, test: {type: const, val: two_engines}}\n")
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("DSAT_")}
    environment.update(PYTHONPATH=f"{ROOT / 'python'}:{SCRIPTS}", DS_ACCELERATOR="cpu",
                       OMP_NUM_THREADS="1", TORCH_EXTENSIONS_DIR=str(extensions))
    run = subprocess.run(
        [sys.executable, "-m", "dsat.determined", "--config", "deepspeed.yaml", "--trial",
         "linear_trial:LinearTrial"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "dsat: validation after 12 batches: val_loss" in run.stdout
    assert (tmp_path / "dsat-out/by-hand/checkpoints/batch-00000012/engine1").exists()


# The names alone, in this process.


@pytest.fixture
def names(monkeypatch):
    """Lets this process find the package, and forgets it again."""
    import dsat.determined
    monkeypatch.setattr(sys, "meta_path", [dsat.determined, *sys.meta_path])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "determined"]:
        del sys.modules[name]


def test_a_missing_name_says_which_and_what_there_is(names):
    with pytest.raises(ImportError, match="determined.pytorch has no 'PyTorchTrial' here; it has "
                                          "Batch, DataLoader, Epoch, "):
        from determined.pytorch import PyTorchTrial  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="determined has no 'experimental' here; it has "):
        import determined.experimental  # noqa: F401
    from determined import core
    with pytest.raises(AttributeError, match="TrainContext has no 'set_status' here; it has .*"
                                             "report_training_metrics"):
        core.init().train.set_status("x")


def test_the_published_modules_have_the_published_names(names):
    import determined as det
    from determined.launch import deepspeed, torch_distributed  # noqa: F401
    from determined.pytorch import DataLoader, MetricReducer, TorchData, dsat  # noqa: F401
    from determined.pytorch.deepspeed import overwrite_deepspeed_config  # noqa: F401
    assert det.core.DistributedContext.from_torch_distributed().size == 1
    assert det.get_cluster_info().slot_ids == [0]
    assert callable(dsat.get_hf_args_with_overwrites)


def test_each_replica_gets_its_batches_in_the_order_of_the_seed(names, monkeypatch):
    from determined.pytorch import DataLoader

    def batches(count, seed=0, **arguments):
        monkeypatch.setenv("DSAT_EXPERIMENT",
                           json.dumps({"reproducibility": {"experiment_seed": seed}}))
        loader = DataLoader(range(10), batch_size=2, shuffle=True).get_data_loader(
            repeat=True, **arguments)
        return [batch.tolist() for batch, _ in zip(loader, range(count))]

    epochs = batches(10)
    assert sorted(sum(epochs[:5], [])) == sorted(sum(epochs[5:], [])) == list(range(10))
    assert epochs[:5] != epochs[5:]
    assert batches(10) == epochs != batches(10, seed=1)
    assert batches(5, num_replicas=2, rank=0) == epochs[::2]
    assert batches(5, num_replicas=2, rank=1) == epochs[1::2]
    assert batches(2, num_replicas=2, rank=1, skip=3) == epochs[7::2]
    once = DataLoader(range(10), batch_size=4).get_data_loader(num_replicas=2, rank=0)
    assert [batch.tolist() for batch in once] == [[0, 1, 2, 3], [8, 9]]
    with pytest.raises(TypeError, match="without a length cannot be sharded"):
        DataLoader(iter([1]))


def test_the_hook_gives_a_sharded_loader_the_trials_batch_size(names):
    from determined.pytorch import DataLoader
    from dsat._hook.batches import rebatch
    loader = DataLoader(range(12), batch_size=2).get_data_loader(num_replicas=2, rank=1)
    rebatch(loader, 3)
    assert [batch.tolist() for batch in loader] == [[3, 4, 5], [9, 10, 11]]


def test_reducers_see_the_values_of_all_ranks_in_their_order(names):
    from dsat._determined.data import Reducers
    from determined.pytorch import MetricReducer

    class Count(MetricReducer):
        def reset(self):
            self.number = 2

        def per_slot_reduce(self):
            return self.number

        def cross_slot_reduce(self, per_slot_metrics):
            return {"count": sum(per_slot_metrics)}

    reducers = Reducers()
    values = reducers.wrap(lambda values: values, "values")
    reducers.wrap(Count(), None, False, True).reset()
    for value in (1, 3):
        values.update(value)
    gather = lambda mine: [mine, [[2], *mine[1:]]]  # noqa: E731
    assert reducers.reduce(True, gather) == {"values": [1, 2, 3]}
    assert reducers.reduce(False, gather) == {"values": [1, 2, 3], "count": 4}
    reducers.wrap(lambda values: 1, None, True, False)
    with pytest.raises(TypeError, match="returned 1; expected a dictionary without name="):
        reducers.reduce(True, gather)


@pytest.mark.parametrize("length, batches", [
    (7, 7), ({"batches": 3}, 3), ({"epochs": 2}, 20), ({"records": 17}, 3), (0, 0), (None, 0)])
def test_lengths_are_batches_epochs_or_records(names, monkeypatch, length, batches):
    from dsat._determined.experiment import length_of
    found = length_of(length)
    assert found.batches(10, 8) == batches
    monkeypatch.setenv("DSAT_EXPERIMENT", '{"records_per_epoch": 80}')
    assert found.batches(None, 8) == batches


def test_the_newest_and_the_best_checkpoint_are_kept(names, trial_config, monkeypatch):
    folder = trial_config({"train_batch_size": 8}, measure="").parent
    monkeypatch.setenv("DSAT_EXPERIMENT", '{"searcher": {"metric": "acc", '
                                          '"smaller_is_better": false}}')
    from determined import core
    context = core.init()
    for steps, accuracy in ((1, 0.1), (2, 0.9), (3, 0.5), (4, 0.7)):
        context.train.report_validation_metrics(steps, {"acc": accuracy})
        with context.checkpoint.store_path({"steps_completed": steps}) as (path, name):
            (path / "model").write_text("weights")
    left = sorted(path.name for path in (folder / "checkpoints").glob("batch-*"))
    assert left == ["batch-00000002", "batch-00000004"]
    from dsat._determined.core import newest_checkpoint
    assert newest_checkpoint() == name == left[1]
    with context.checkpoint.restore_path(name) as path:
        assert (path / "model").read_text() == "weights"
    with pytest.raises(RuntimeError), context.checkpoint.store_path({"steps_completed": 5}):
        raise RuntimeError("in the middle of a checkpoint")
    assert newest_checkpoint() == name
    with pytest.raises(FileNotFoundError):
        context.checkpoint.get_metadata("batch-00000001")


def test_hyperparameters_reach_scripts_and_classes(names, trial_config, monkeypatch):
    import dsat
    trial_config({"train_batch_size": 8})
    monkeypatch.setenv("DSAT_HPARAMS", '{"width": 4}')
    assert dsat.trial().hparams == {"width": 4}
    import determined as det
    assert det.get_cluster_info().trial.hparams == {"width": 4}
    from determined.core import init
    from determined.pytorch.deepspeed import DeepSpeedTrialContext
    context = DeepSpeedTrialContext(init())
    assert context.get_hparam("width") == 4
    with pytest.raises(KeyError, match="hyperparameters has no 'depth'; it has width"):
        context.get_hparam("depth")
    batch = {"x": [torch.zeros(1), "text"], "y": (torch.ones(1),)}
    assert str(context.to_device(batch)["y"][0].device) == str(context.device)
    assert context.to_device(batch)["x"][1] == "text"
