"""Arguments of trainers that a trial sets without a change of the script."""
import json

import pytest

pytest.importorskip("transformers")
CONFIG = {"zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}


@pytest.mark.parametrize("how", ["on", "off"])
def test_the_profile_says_what_the_trainer_has_set(run_trial, how):
    run_trial.write_config("profile", gradient_accumulation_steps=1, **CONFIG)
    assert run_trial.run("checkpointing.py", how, ranks=1) == [0], run_trial.log()
    profile = run_trial.read("hook-rank0.json")["profile"]
    assert profile["trainer"] == {
        "gradient_checkpointing": how == "on", "attn_implementation": "eager",
        "optim": "adamw_torch", "dataloader_num_workers": 0, "dataloader_pin_memory": False}


def test_a_trial_sets_them_and_trains_the_same(run_trial):
    losses = []
    for given in ({}, {"gradient_checkpointing": False, "attn_implementation": "sdpa",
                       "optim": "adamw_torch_fused", "dataloader_num_workers": 1}):
        run_trial.write_config(**CONFIG)
        assert run_trial.run("checkpointing.py", "on", ranks=1,
                             DSAT_TRAINER=json.dumps(given)) == [0], run_trial.log()
        found = run_trial.read("hook-rank0.json")
        losses.append(found["losses"])
        assert ("runs False sdpa True 1" if given else
                "runs True eager False 0") in run_trial.log()
        assert found["changed_script"] is True  # By the batch sizes alone without `given`.
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_what_stays_as_it_was_is_no_change_of_the_script(run_trial):
    run_trial.write_config(**{**CONFIG, "train_micro_batch_size_per_gpu": 8,
                              "gradient_accumulation_steps": 1})
    same = json.dumps({"gradient_checkpointing": True, "optim": "adamw_torch"})
    assert run_trial.run("checkpointing.py", "on", ranks=1, DSAT_TRAINER=same) == [0], (
        run_trial.log())
    assert "changed_script" not in run_trial.read("hook-rank0.json")


def test_the_first_loader_of_a_script_gets_workers_and_pinned_memory(monkeypatch):
    torch = pytest.importorskip("torch")
    from dsat._hook import arguments
    monkeypatch.setattr(arguments, "submitted", {})

    def changed(number, pins, given):
        monkeypatch.setenv("DSAT_TRAINER", json.dumps(given))
        loader = torch.utils.data.DataLoader(range(6), batch_size=2, num_workers=number)
        arguments.change_loader(loader)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
        assert loader.pin_memory == pins
        return loader.num_workers, loader.prefetch_factor

    given = {"dataloader_num_workers": 2, "dataloader_pin_memory": True}
    assert changed(0, True, given) == (2, 2)
    assert arguments.submitted == {"dataloader_num_workers": 0, "dataloader_pin_memory": False}
    assert changed(0, False, given) == (0, None)  # Such as that of the validation.
    arguments.submitted.clear()
    assert changed(1, False, {"dataloader_num_workers": 0}) == (0, None)


def test_deepspeed_may_ask_for_what_a_class_records(monkeypatch):
    capturing = pytest.importorskip("transformers.utils.output_capturing")
    from dsat._hook import arguments
    kind = type(capturing._CAN_RECORD_REGISTRY)
    monkeypatch.setattr(kind, "get", kind.get)  # It is restored after the test.
    arguments._accept_class_names()
    registry = kind()
    registry["a text"] = {"router_logits": 1}
    assert registry.get("<class 'str'>", None) == {"router_logits": 1}
    assert registry.get("<class 'int'>", 7) == 7
