"""Ends a trial whose script trains where nothing can be measured, in place of training for hours."""
from __future__ import annotations

import time
from types import ModuleType
from typing import Any, Optional

from dsat._hook.batches import UnreachableError
from dsat._trial import rank_file, trial

# A script may take some steps of its own before it has DeepSpeed's engine.
LEAST_STEPS = 20
LEAST_SECONDS = 120.0

_num_steps = 0
_since: Optional[float] = None


def change(module: ModuleType) -> None:
    """Watches the optimizers of PyTorch, whose steps every training takes."""
    module.register_optimizer_step_post_hook(_note)


def _note(*_: Any) -> None:
    """Raises UnreachableError after steps that neither the hook nor dsat.report() has seen."""
    global _num_steps, _since
    running = trial()
    if running is None or not running.measures or running.is_dry_run:
        return
    if rank_file(running).get("config_applied"):
        return
    _num_steps += 1
    _since = _since or time.monotonic()
    if _num_steps < LEAST_STEPS or time.monotonic() - _since < LEAST_SECONDS:
        return
    raise UnreachableError(
        f"dsat: the script has taken {_num_steps} optimizer steps without DeepSpeed, which dsat "
        "cannot measure: it has never called deepspeed.initialize(), perhaps because its trainer "
        "got no DeepSpeed config or was told to use the CPU; train with DeepSpeed, or call "
        "dsat.report() after each step (docs/python.md)")
