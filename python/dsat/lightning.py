"""A callback for Lightning's trainer.

With Lightning's DeepSpeed strategy a script needs it only to keep what the module logs. With other
strategies it lets dsat measure the steps.
"""
from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback  # type: ignore[assignment]

from dsat._report import add_batch, log, report


class DsatCallback(Callback):
    """Reports the steps and metrics of a trial of dsat; does nothing elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        # The trainer has divided the loss by the accumulation steps.
        add_batch(batch, outputs.get("loss") if isinstance(outputs, dict) else outputs)
        if trainer.global_step == self._steps:
            return  # In the middle of an accumulation.
        self._steps = trainer.global_step
        report(model=pl_module)

    def on_validation_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        log(trainer.callback_metrics)

    on_train_end = on_validation_end
    on_exception = on_validation_end  # A trial ends with SystemExit in the middle of a step.
