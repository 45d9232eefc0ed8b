"""Training without DeepSpeed, which says itself when a step has ended."""
import json
from types import SimpleNamespace

import dsat
import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def running(trial_config, monkeypatch):
    """Makes this process a rank of a trial; returns the folder of its files."""
    def start(measure="steps", total=6):
        monkeypatch.setattr("dsat._report._meter", None)
        monkeypatch.setattr("dsat._report._counter", None)
        monkeypatch.setattr("dsat._report._watched", [])
        monkeypatch.setattr("dsat._report._passes", [])
        config = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}
        total = {} if total is None else {"train_batch_size": total}
        folder = trial_config({**config, **total}, measure).parent
        return folder
    return start


def train(step, steps=20):
    """Trains until the trial ends the process; returns the number of steps that it let pass."""
    for number in range(steps):
        try:
            step(number)
        except SystemExit as end:
            assert end.code == 0
            return number
    return steps


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_steps_are_measured_and_the_process_ends(running):
    folder = running()
    model = torch.nn.Linear(8, 4)

    def step(number):
        for _ in range(2):
            model(torch.zeros(3, 8)).sum().backward()
        dsat.report(loss=torch.tensor(float(number)), model=model, samples=6, wait_s=1e-6)
    assert train(step) == 4
    found = read(folder, "hook-rank0.json")
    assert found["config_applied"] is True
    assert found["world_size"] == 1
    assert found["ran"] == {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2,
                            "train_batch_size": 6, "data_parallel_size": 1}
    assert found["losses"] == [0, 1, 2, 3, 4]
    assert 0 < found["data_wait_share"] <= 1
    assert (found["num_steps"], found["first_counted_step"], found["samples"]) == (5, 2, 6)
    assert found["forward_seconds"] == found["backward_seconds"] == [0, 0, 0]
    assert found["update_seconds"] == found["step_seconds"]
    # Forward and the gradient of the weights; the input has none.
    assert found["flops"] == 2 * 2 * (2 * 3 * 8 * 4)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_activations_are_no_flops(reentrant):
    from dsat._meter import FlopCounter
    from torch.utils.checkpoint import checkpoint
    layer, ids = torch.nn.Linear(8, 4), torch.zeros(3, 8, requires_grad=True)
    counter = FlopCounter()
    counter.start()
    checkpoint(lambda x: layer(x).relu(), ids, use_reentrant=reentrant).sum().backward()
    counter.stop()
    assert counter.flops == 3 * (2 * 3 * 8 * 4)


def test_fewer_passes_than_micro_batches_are_an_error(running):
    running()
    model = torch.nn.Linear(8, 4)

    def step(number):
        model(torch.zeros(3, 8)).sum().backward()
        dsat.report(loss=float(number), model=model, samples=6)
    step(0)  # From now on passes are counted.
    with pytest.raises(RuntimeError, match="ran 1 times .* gradient_accumulation_steps 2: "):
        step(1)


def test_without_a_total_all_ranks_have_samples_of_their_own(running, monkeypatch):
    folder = running(total=None)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert train(lambda number: dsat.report(loss=1.0)) == 4
    assert read(folder, "hook-rank0.json")["samples"] == 3 * 2 * 4
    running()
    with pytest.raises(ValueError, match=r"samples=7\): expected a multiple of 6"):
        dsat.report(loss=1.0, samples=7)


def test_the_tasks_of_a_job_are_not_reported_as_ranks(running, monkeypatch):
    folder = running()
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("SLURM_NTASKS", "8")
    dsat.report(loss=1.0)
    assert "world_size" not in read(folder, "hook-rank0.json")


@pytest.mark.parametrize("measure", ["steps", "profile"])
def test_a_rank_within_another_one_is_refused(running, monkeypatch, measure):
    folder = running(measure)
    monkeypatch.setenv("DSAT_RANK", "0")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(RuntimeError, match="begin it with the launcher"):
        dsat.report(loss=1.0, model=torch.nn.Linear(2, 2))
    assert [path.name for path in folder.iterdir()] == ["ds_config.json"]


def test_short_steps_are_measured_until_their_rate_is_known(running, monkeypatch):
    folder = running()
    monkeypatch.delenv("DSAT_FIXED_STEPS")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    times = iter([0.25 * number for number in range(100)])
    monkeypatch.setattr("dsat._meter.time.perf_counter", lambda: 0.2 * next(times))
    ended_after = train(lambda number: dsat.report(loss=1.0, samples=6), steps=60)
    found = read(folder, "hook-rank0.json")
    assert found["first_counted_step"] + len(found["step_seconds"]) == ended_after + 1
    assert ended_after == 1 + 12
    assert found["samples"] == 6


def test_the_profiling_trial_counts_parameters(running):
    folder = running("profile")
    model = torch.nn.Linear(8, 4)
    model.bias.requires_grad_(False)
    assert train(lambda number: dsat.report(model=model)) == 0
    found = read(folder, "hook-rank0.json")
    profile = found["profile"]
    assert (profile["num_params"], profile["trainable_num_params"]) == (36, 32)
    assert profile["activation_bytes_per_sample"] >= 0
    assert found["on_cpu"]
    with pytest.raises(ValueError, match="pass model="):
        dsat.report()


def test_a_full_run_and_a_run_without_dsat_train_to_their_end(running, monkeypatch):
    folder = running(measure="")
    assert train(lambda number: dsat.report(loss=1.0)) == 20
    monkeypatch.delenv("DSAT_DS_CONFIG")
    assert train(lambda number: dsat.report(loss=1.0)) == 20
    dsat.log({"eval_loss": 1.0})
    monkeypatch.setenv("DSAT_DS_CONFIG", str(folder / "ds_config.json"))  # As in command.txt.
    monkeypatch.delenv("DSAT_TRIAL_DIR")
    dsat.log({"eval_loss": 1.0})
    dsat.report(loss=1.0)
    assert [path.name for path in folder.iterdir()] == ["ds_config.json"]


def test_the_context_keeps_the_memory_of_a_rank_that_fails(running, monkeypatch):
    folder = running()
    with pytest.raises(RuntimeError, match="out of memory"):
        with dsat.dsat_reporting_context("core_context", op=1):
            raise RuntimeError("CUDA out of memory")
    assert read(folder, "hook-rank0.json")["peak_bytes"] > 1e6
    monkeypatch.delenv("DSAT_DS_CONFIG")
    with dsat.dsat_reporting_context():
        pass


def test_hugging_faces_trainer_without_deepspeed_is_measured(running):
    pytest.importorskip("transformers")
    from dsat.huggingface import DsatCallback
    folder = running()
    callback = DsatCallback()
    args = SimpleNamespace(train_batch_size=3, gradient_accumulation_steps=2, world_size=1)

    def step(number):
        callback.on_log(args, None, None, logs={"loss": number, "text": "is left out"})
        callback.on_evaluate(args, None, None, metrics={"eval_loss": 0.5})
        callback.on_step_end(args, None, None, model=torch.nn.Linear(2, 2))
    assert train(step) == 4
    found = read(folder, "hook-rank0.json")
    assert found["samples"] == 6
    assert found["metrics"] == {"loss": 4.0, "eval_loss": 0.5}


def test_lightning_without_deepspeed_is_measured(running):
    pytest.importorskip("lightning")
    from dsat.lightning import DsatCallback
    folder = running()
    callback = DsatCallback()
    trainer = SimpleNamespace(global_step=0, callback_metrics={"val_loss": torch.tensor(0.25)})

    def step(number):
        trainer.global_step = (number + 1) // 2  # Two micro-batches for a step.
        part = {"loss": torch.tensor(1.0 + number % 2)}  # The trainer has divided it by two.
        batch = {"ids": torch.zeros(1 if number == 4 else 3, 8), "text": ["a", "b", "c"]}
        callback.on_train_batch_end(trainer, torch.nn.Linear(2, 2), part, batch, number)
    callback.on_validation_end(trainer, None)
    assert train(step) == 9
    found = read(folder, "hook-rank0.json")
    assert found["losses"] == [3.0] * 5
    assert found["metrics"] == {"val_loss": 0.25}
    assert found["ran"] == {"gradient_accumulation_steps": 2}
    assert (found["forward_batch_sizes"], found["partial_steps"]) == ([1, 3], [2])
