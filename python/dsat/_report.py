"""The contract for training without DeepSpeed: a script says when a step has ended."""
from __future__ import annotations

import contextlib
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional

from dsat._hook.batches import BatchCounter
from dsat._meter import (Meter, Passes, count_parameters, finish_profile, memory_in_use, number_of,
                         peak_memory, synchronize, uses_gpu)
from dsat._trial import Trial, has_read_config, measures, rank, rank_file, trial

_meter: Optional[Meter] = None
_loss: Any = None  # The sum of the parts that add_loss() was given since the last step.
_counter: Optional[BatchCounter] = None  # Counts the samples that add_batch() was given.
_num_batches = 0  # The batches that add_batch() was given since the last step.
_watched: List[Any] = []  # The models whose forward passes are counted.
_passes: List[Any] = []   # One of them for each pass since the last step.


def report(*, loss: Any = None, model: Any = None, samples: Optional[int] = None,
           forward_s: float = 0.0, backward_s: float = 0.0, wait_s: float = 0.0) -> None:
    """Tells dsat that an optimizer step has ended. Does nothing outside of a trial of dsat.

    Call it after each optimizer step, on every rank, in a script whose trainer is not DeepSpeed.
    In a trial it measures the steps, writes the result after the step --end-profile-step, or later
    if the steps vary much, and ends the process with exit code 0. In the profiling trial it writes
    the profile of the model after the first step and ends the process.

    Args:
        loss: of the step, a number or a tensor of one element.
        model: a torch module, whose parameters the profiling trial counts. Required there.
        samples: of the step over all ranks; by default the config's train_batch_size, or as many
            as all ranks train on if it gives none; then the script must have read the config. It
            is a multiple of the micro-batch size times the accumulation steps, which each replica
            of the model trains on.
        forward_s, backward_s: seconds of the step in the two passes, if the script measures them.
        wait_s: seconds of the step in which this rank waited for data, if the script measures them.
    """
    global _meter, _loss, _num_batches
    loss, _loss = _loss if loss is None else loss, None
    batches, _num_batches = _num_batches, 0
    running = _measured_trial()
    if running is None:
        return
    _check_passes(running, model)
    if samples is None:
        _check_reads_config()
    if running.is_profile:
        if model is None:
            raise ValueError("dsat.report(): the profiling trial counts parameters; pass model=")
        synchronize()
        rank_file(running).begin({"on_cpu": not uses_gpu()})
        finish_profile(running, *count_parameters(model.parameters()),
                       peak_memory()["peak_bytes"] - memory_in_use())
    if _meter is None:
        _meter = Meter(running)
        rank_file(running).begin({"on_cpu": not uses_gpu(),
                                  "ran": _settings_of(running, samples, batches)})
    _meter.counter = _counter
    _meter.end_step(loss, Passes(forward_s, backward_s), wait_s, samples)


def _check_passes(running: Trial, model: Any) -> None:
    """Raises RuntimeError if the step that ends now had fewer forward passes than micro-batches."""
    passes, _passes[:] = list(_passes), []
    if passes and passes[0] is model and len(passes) < (running.accumulation_steps or 1):
        raise RuntimeError(
            f"dsat.report(): the model ran {len(passes)} times in this step, and the trial has "
            f"gradient_accumulation_steps {running.accumulation_steps}: the script must read them, "
            "too, and train on as many micro-batches for each step")
    if model is not None and model not in _watched and hasattr(model, "register_forward_hook"):
        _watched.append(model)
        model.register_forward_hook(lambda module, *_: _passes.append(module))


def add_loss(part: Any) -> None:
    """A part of the step's loss, for a callback that is not told the loss by its trainer."""
    global _loss
    _loss = part if _loss is None else _loss + part


def add_batch(batch: Any, loss: Any) -> None:
    """A micro-batch and its part of the step's loss, for a callback that sees each of them."""
    global _counter, _num_batches
    running = _measured_trial()
    if running is None:
        return
    _check_reads_config()
    if loss is not None:
        add_loss(loss)
    _num_batches += 1
    _counter = _counter or BatchCounter(running.micro_batch_size or 0)
    _counter.note([batch], {}, 0 if _meter is None else _meter.num_steps)


def _settings_of(running: Trial, samples: Optional[int], batches: int) -> Dict[str, int]:
    """What the script ran: steps of `samples` samples or, as far as it is known, of `batches`."""
    micro_batch, steps = running.micro_batch_size, running.accumulation_steps
    if samples is None or not micro_batch or not steps:
        return {"gradient_accumulation_steps": batches} if batches else {}
    if samples % (micro_batch * steps) != 0:
        raise ValueError(
            f"dsat.report(samples={samples}): expected a multiple of {micro_batch * steps}, which "
            f"each replica trains on: micro-batches of {micro_batch}, {steps} for a step")
    return {"train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": steps,
            "train_batch_size": samples, "data_parallel_size": samples // (micro_batch * steps)}


def _check_reads_config() -> None:
    """Raises RuntimeError if the script cannot know the batch sizes of the trial."""
    if rank() == 0 and not has_read_config():  # It may tell the other ranks.
        raise RuntimeError(
            "dsat.report(): nothing shows that the script trains with the trial's config, because "
            "it has not read it: read the batch sizes from the file that "
            "os.environ[\"DSAT_DS_CONFIG\"] names, or from dsat.get_ds_config(config), or pass "
            "samples=, the samples of a step over all ranks")


def _measured_trial() -> Optional[Trial]:
    """The trial, if it is measured, and not by the import hook, which sees DeepSpeed's engines."""
    running = trial() if measures() else None
    return None if running is None or rank_file(running).get("engine") is not None else running


def log(metrics: Mapping[str, Any]) -> None:
    """Keeps the last value of each metric in this rank's report to dsat; does nothing elsewhere.

    Args:
        metrics: names and numbers, such as an evaluation's loss. What is no number is left out.
    """
    running = trial()
    if running is None:
        return
    numbers = {name: number_of(value) for name, value in metrics.items()}
    kept = dict(rank_file(running).get("metrics") or {})
    kept.update({name: value for name, value in numbers.items() if value is not None})
    rank_file(running).keep({"metrics": kept})


@contextlib.contextmanager
def dsat_reporting_context(core_context: Any = None, op: Any = None,
                           steps_completed: Optional[int] = None) -> Iterator[None]:
    """Surrounds training code of scripts that were written for Determined; it may stay in them.

    In a trial of dsat, what the rank knows about its memory is written even if the block raises,
    for example because it ran out of memory. Elsewhere the block just runs.

    Args:
        core_context, op, steps_completed: accepted and not used, because dsat itself reads what
            a trial has measured.
    """
    del core_context, op, steps_completed
    try:
        yield
    except Exception:
        running = trial()
        if running is not None:
            rank_file(running).add(dict(peak_memory()))
        raise
    finally:
        sys.stdout.flush()
