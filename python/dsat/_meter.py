"""Measures the optimizer steps of a rank, and writes the result to the rank's file."""
from __future__ import annotations

import math
import sys
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from dsat._trial import Trial, at_exit, has_result, note_result, rank, rank_file, world_size
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
    if hasattr(loss, "detach"):
        if loss.numel() != 1:
            return None
        loss = loss.detach().item()
    try:
        return float(loss)
    except (TypeError, ValueError):
        return None


def _flop_counter() -> Any:
    """PyTorch's own counter, and experts' products, but not activations that are recomputed."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    class Counter(FlopCounterMode):
        def _count_flops(self, func: Any, out: Any, args: Any, kwargs: Any) -> Any:
            # A backward pass that computes with gradients recomputes.
            if torch._C._current_graph_task_id() >= 0 and torch.is_grad_enabled():
                return out
            return super()._count_flops(func, out, args, kwargs)

    def grouped(a: Any, b: Any, *_args: Any, **_kwargs: Any) -> int:
        # Rows of `a` meet the matrix of their group, or columns of both those of the same group.
        return 2 * math.prod(a) * int(b[-1]) // (a[0] if len(a) > len(b) else 1)
    own = {torch.ops.aten._grouped_mm: grouped} if hasattr(torch.ops.aten, "_grouped_mm") else {}
    return Counter(display=False, custom_mapping=own)


class FlopCounter:
    """Counts the FLOPs of one optimizer step of this rank, without recomputed activations."""

    def __init__(self) -> None:
        self.flops = 0
        self._mode: Any = None

    def start(self) -> None:
        try:
            self._mode = _flop_counter()
            self._mode.__enter__()
        except Exception:  # An old PyTorch, or none: there are no FLOPs then.
            self._mode = None

    def stop(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self.flops = int(self._mode.get_total_flops())
            self._mode = None


class Passes(NamedTuple):
    """Seconds of a step in the two passes and in the optimizer's update; 0 if not measured."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: Optional[float] = None  # None: the rest of the step.


class Meter:
    """Measures the training loop of one rank, and ends the process when enough is measured.

    All ranks measure the same steps and end with exit code 0. Rank 0's file says after each step
    how many there were.
    """

    def __init__(self, of: Trial, counter: Any = None) -> None:
        """`counter` is the BatchCounter whose report belongs to the result, if there is one."""
        self.num_steps = 0
        self.counter = counter
        self._trial = of
        self._window = StepWindow(of.start_profile_step + 1, of.end_profile_step,
                                  of.has_fixed_steps)
        self._losses: List[float] = []
        self._waits: List[float] = []
        self._passes: List[Passes] = []
        self._samples: Optional[int] = None
        self._ended_at: Optional[float] = None
        self._finishes_at_exit = False
        self._flops = FlopCounter()
        if of.start_profile_step == 0 and not of.is_profile:
            self._flops.start()

    def end_step(self, loss: Any = None, passes: Passes = Passes(), wait_s: float = 0,
                 samples: Optional[int] = None) -> None:
        """Call it at the end of an optimizer step, on every rank.

        Args:
            loss: of the step.
            passes: the parts of its time, as far as they are known.
            wait_s: seconds of it in which the rank waited for data.
            samples: of the step, over all ranks; by default the config's train_batch_size, or as
                many as all ranks train on if it gives none.
        """
        of = self._trial
        if not of.measures or of.is_dry_run:
            return
        synchronize()
        now, step = time.perf_counter(), self.num_steps
        self._samples = samples
        value = number_of(loss)
        if value is not None:
            self._losses.append(value)
        if step == of.start_profile_step:
            self._flops.stop()
        if step > of.start_profile_step and self._ended_at is not None:
            self._window.seconds.append(now - self._ended_at)
            self._waits.append(wait_s)
            self._passes.append(passes)
        self.num_steps += 1
        if rank() == 0:
            rank_file(of).add({"num_steps": self.num_steps})
        if step >= self._window.last and not self._window.goes_on():
            self._write_result()
            sys.exit(0)
        if step >= of.sufficient_step:
            self._finish_at_exit()
        if step + 1 == of.start_profile_step:
            self._flops.start()
        self._ended_at = time.perf_counter()  # The work of dsat is no part of a step.

    def _finish_at_exit(self) -> None:
        """If the script ends before further steps were measured, those that were count."""
        def run() -> None:
            failed = hasattr(sys, "last_type")  # By an exception that nothing caught.
            if not failed and not has_result():
                self._write_result()
        if not self._finishes_at_exit:
            at_exit(run)
        self._finishes_at_exit = True

    def _write_result(self) -> None:
        window, counted = self._window, self._window.counted
        content: Dict[str, Any] = {
            **peak_memory(), "losses": self._losses, "samples": self._samples_of_step(),
            "flops": self._flops.flops, "first_counted_step": window.first_counted,
            "step_seconds": counted}
        if self.counter is not None:
            content.update(self.counter.report())
        if sum(window.seconds) > 0:
            content["data_wait_share"] = min(1.0, sum(self._waits) / sum(window.seconds))
        parts = self._passes[-len(counted):]
        content["forward_seconds"] = [part.forward_s for part in parts]
        content["backward_seconds"] = [part.backward_s for part in parts]
        content["update_seconds"] = [
            max(0.0, total - part.forward_s - part.backward_s) if part.update_s is None
            else part.update_s for total, part in zip(counted, parts)]
        rank_file(self._trial).add(content)
        note_result()

    def _samples_of_step(self) -> int:
        of = self._trial
        samples = self._samples or of.batch("train_batch_size")
        if not samples and of.micro_batch_size:
            samples = of.micro_batch_size * (of.accumulation_steps or 1) * world_size()
        if not samples:
            raise ValueError(f"{of.config_path}: no batch size is a number; pass samples= to "
                             "dsat.report()")
        return samples


def count_parameters(parameters: Iterable[Any]) -> Tuple[int, int]:
    """The elements of all parameters, whole ones also where ZeRO or FSDP has partitioned them, and
    those of the trained ones."""
    sizes = [(int(getattr(p, "ds_numel", getattr(p, "_unpadded_unsharded_size", p.shape).numel())),
              p.requires_grad) for p in parameters]
    return sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained)


def finish_profile(of: Trial, num_params: int, trainable_num_params: int,
                   activation_bytes: int, more: Optional[Dict[str, Any]] = None) -> None:
    """Writes the profile of the model, and ends the process with exit code 0.

    Args:
        num_params, trainable_num_params: of the whole model, over all ranks.
        activation_bytes: what the activations of one micro-batch take on this rank.
        more: further keys of the profile.
    """
    profile = {"num_params": int(num_params), "trainable_num_params": int(trainable_num_params),
               "activation_bytes_per_sample":
                   max(0, int(activation_bytes)) // (of.micro_batch_size or 1), **(more or {})}
    if uses_gpu():
        cuda = sys.modules["torch"].cuda
        profile["device_memory_bytes"] = int(
            cuda.get_device_properties(cuda.current_device()).total_memory)
    rank_file(of).add({**peak_memory(), "profile": profile})
    note_result()
    sys.exit(0)
