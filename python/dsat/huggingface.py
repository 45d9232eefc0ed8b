"""A callback for Hugging Face's trainer and those that sit on it, such as TRL's.

With DeepSpeed a script needs it only to keep what the trainer logs. Without DeepSpeed (FSDP, plain
data parallelism) it lets dsat measure the steps: build the arguments with
dsat.get_hf_args_with_overwrites(), so that they have the trial's batch sizes.
"""
from __future__ import annotations

from typing import Any, Dict, Optional

from transformers import TrainerCallback

from dsat._report import log, report


class DsatCallback(TrainerCallback):
    """Reports the steps and metrics of a trial of dsat; does nothing elsewhere."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None,
                    **kwargs: Any) -> None:
        samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        report(model=model, samples=samples)

    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None,
               metrics: Optional[Dict[str, Any]] = None, **kwargs: Any) -> None:
        log(logs or metrics or {})

    on_evaluate = on_log
