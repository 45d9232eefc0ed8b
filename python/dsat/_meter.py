"""Measures optimizer steps where DeepSpeed's hooks do not, and writes the files that they write."""
from __future__ import annotations

import functools
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from dsat._trial import (Trial, at_exit, has_result, note_result, rank, rank_file, world_size,
                         write_json)
from dsat._window import StepWindow


def uses_gpu() -> bool:
    """True if this process has a context on a GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()


_used_gpus: List[int] = []


def _gpus() -> List[int]:
    """The GPUs on which this process has memory: a script need not make its GPU the current one.

    They are looked up until there are some, since PyTorch takes time to say.
    """
    cuda = sys.modules["torch"].cuda
    if not _used_gpus:
        _used_gpus.extend(gpu for gpu in range(cuda.device_count())
                          if cuda.memory_reserved(gpu) > 0)
    return _used_gpus or [cuda.current_device()]


def synchronize() -> None:
    """Waits for the GPUs that the process uses."""
    if uses_gpu():
        for gpu in _gpus():
            sys.modules["torch"].cuda.synchronize(gpu)


def peak_memory() -> Dict[str, int]:
    """The highest memory in use by this rank, in bytes, and the flushes of CUDA's allocator.

    host_bytes is the highest resident size of the process, as is peak_bytes without a GPU.
    """
    import resource
    host_bytes = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024
    if uses_gpu():
        cuda = sys.modules["torch"].cuda
        retries = sum(int(cuda.memory_stats(gpu).get("num_alloc_retries", 0)) for gpu in _gpus())
        return {"peak_bytes": max(int(cuda.max_memory_allocated(gpu)) for gpu in _gpus()),
                "host_bytes": host_bytes, "num_alloc_retries": retries}
    return {"peak_bytes": host_bytes, "host_bytes": host_bytes, "num_alloc_retries": 0}


def memory_in_use() -> int:
    """Bytes of device memory; without a GPU, the resident size of the process."""
    if uses_gpu():
        return max(int(sys.modules["torch"].cuda.memory_allocated(gpu)) for gpu in _gpus())
    import resource
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def number_of(loss: Any) -> Optional[float]:
    """A loss as a number; None if it is not a number."""
    if loss is None:
        return None
    if hasattr(loss, "detach"):
        if loss.numel() != 1:
            return None
        loss = loss.detach().item()
    try:
        return float(loss)
    except (TypeError, ValueError):
        return None


class FlopCounter:
    """Counts the FLOPs of one optimizer step of this rank with PyTorch's own counter."""

    def __init__(self) -> None:
        self.flops = 0
        self._mode: Any = None

    def start(self) -> None:
        try:
            from torch.utils.flop_counter import FlopCounterMode
            self._mode = FlopCounterMode(display=False)
            self._mode.__enter__()
        except Exception:  # An old PyTorch, or none: there are no FLOPs then.
            self._mode = None

    def stop(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self.flops = int(self._mode.get_total_flops())
            self._mode = None


class StepLog:
    """Losses, durations and waits of the measured steps of one rank."""

    def __init__(self, of: Trial) -> None:
        self._trial = of
        self.num_steps = 0
        self.window = StepWindow(of.start_profile_step + 1, of.end_profile_step, of.has_fixed_steps)
        self._losses: List[float] = []
        self._waits: List[float] = []
        self.ended_at: Optional[float] = None
        self._finishes_at_exit = False

    def end_step(self, loss: Any, wait_s: float) -> None:
        """Notes the end of an optimizer step, in which `wait_s` seconds were spent on data."""
        now = time.perf_counter()
        value = number_of(loss)
        if value is not None:
            self._losses.append(value)
        if self.num_steps > self._trial.start_profile_step and self.ended_at is not None:
            self.window.seconds.append(now - self.ended_at)
            self._waits.append(wait_s)
        self.num_steps += 1
        self.ended_at = now

    def finish_at_exit(self, finish: Callable[[], None]) -> None:
        """If the script ends before further steps were measured, those that were count."""
        def run() -> None:
            failed = hasattr(sys, "last_type")  # By an exception that nothing caught.
            if not failed and not has_result():
                finish()
        if not self._finishes_at_exit:
            at_exit(run)
        self._finishes_at_exit = True

    def write(self) -> None:
        """Adds everything to the rank's file."""
        content: Dict[str, Any] = dict(peak_memory())
        content["losses"] = self._losses
        if sum(self.window.seconds) > 0:
            content["data_wait_share"] = min(1.0, sum(self._waits) / sum(self.window.seconds))
            content["first_counted_step"] = self.window.first_counted
            content["step_seconds"] = self.window.counted
        rank_file(self._trial).add(content)


class Meter:
    """Measures a training loop step by step and ends the process when enough is measured.

    It plays the role of DeepSpeed's autotuning hooks for other engines: rank 0 prints their line
    after each step and writes their files, and all ranks end with exit code 0.
    """

    def __init__(self, of: Trial) -> None:
        self._trial = of
        self._log = StepLog(of)
        self._flops = FlopCounter()
        self._phases: List[List[float]] = []  # Seconds in forward and backward of measured steps.
        if of.start_profile_step == 0 and not of.is_profile:
            self._flops.start()

    @property
    def may_be_last_step(self) -> bool:
        """Whether the process may end after the current step."""
        return self._log.num_steps >= self._log.window.last

    @property
    def num_steps(self) -> int:
        return self._log.num_steps

    def end_step(self, loss: Any = None, forward_s: float = 0, backward_s: float = 0,
                 wait_s: float = 0, samples: Optional[int] = None) -> None:
        """Call it at the end of an optimizer step, on every rank.

        Args:
            loss: of the step.
            forward_s, backward_s: seconds of it in the two passes, if they are known.
            wait_s: seconds of it in which the rank waited for data.
            samples: of the step, over all ranks; by default the config's train_batch_size, or as
                many as all ranks train on if it gives none.
        """
        of = self._trial
        if not of.measures:
            return
        synchronize()
        step, may_be_last_step = self._log.num_steps, self.may_be_last_step
        begun = self._log.ended_at
        self._log.end_step(loss, wait_s)
        total_s = 0.0 if begun is None else time.perf_counter() - begun
        if step == of.start_profile_step:
            self._flops.stop()
        if of.start_profile_step < step:
            self._phases.append([forward_s, backward_s])
        if may_be_last_step:
            if not self._log.window.goes_on():
                self._write_result(samples)
                sys.exit(0)
            self._log.finish_at_exit(functools.partial(self._write_result, samples))
        if rank() == 0:
            rest_s = max(0.0, total_s - forward_s - backward_s)
            print(f"[Rank 0] time (ms) | fwd: {forward_s * 1e3:.2f} | bwd: {backward_s * 1e3:.2f}"
                  f" | step: {rest_s * 1e3:.2f}", flush=True)
        if step + 1 == of.start_profile_step:
            self._flops.start()

    def _write_result(self, samples: Optional[int]) -> None:
        self._log.write()
        if rank() == 0:
            write_json(self._trial.metric_path, self._metrics(samples))
        note_result()

    def _metrics(self, samples: Optional[int]) -> Dict[str, float]:
        """What DeepSpeed writes: microseconds per micro-batch, and of a step as "latency".

        "step" is the rest of the time: the update, communication and bubbles.
        """
        of, counted = self._trial, self._log.window.counted
        latency_s = statistics.median(counted)
        accumulation = of.accumulation_steps or 1
        forward_s, backward_s = (
            statistics.median(times) for times in zip(*self._phases[-len(counted):]))
        rest_s = max(0.0, latency_s - forward_s - backward_s)
        samples = samples or of.batch("train_batch_size")
        if not samples and of.micro_batch_size:
            samples = of.micro_batch_size * accumulation * world_size()
        if not samples:
            raise ValueError(f"{of.config_path}: no batch size is a number; pass samples= to "
                             "dsat.report()")
        metrics = {"fwd": forward_s, "bwd": backward_s, "step": rest_s}
        result = {key: value * 1e6 / accumulation for key, value in metrics.items()}
        result["latency"] = sum(result.values()) * accumulation
        result["throughput"] = samples * 1e6 / result["latency"]
        result["FLOPS_per_gpu"] = self._flops.flops / latency_s
        result["rank"] = 0
        return result


def finish_profile(of: Trial, num_params: int, trainable_num_params: int,
                   activation_bytes: int) -> None:
    """Writes the model info file on rank 0, and ends the process with exit code 0.

    Args:
        num_params, trainable_num_params: of the whole model, over all ranks.
        activation_bytes: what the activations of one micro-batch take on this rank.
    """
    rank_file(of).add(dict(peak_memory()))
    if rank() == 0:
        info = {"num_params": int(num_params), "trainable_num_params": int(trainable_num_params),
                "activation_mem_per_gpu": max(0, int(activation_bytes)), "rank": 0}
        if uses_gpu():
            cuda = sys.modules["torch"].cuda
            info["gpu_mem"] = int(cuda.get_device_properties(cuda.current_device()).total_memory)
        write_json(of.model_info_path, info)
    note_result()
    sys.exit(0)
