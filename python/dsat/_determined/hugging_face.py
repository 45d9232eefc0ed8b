"""The callback of Hugging Face's trainer for its metrics, checkpoints and end."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional

from transformers import TrainerCallback

from dsat._determined.core import Context, newest_checkpoint
from dsat._determined.experiment import max_length
from dsat._trial import measures


class DetCallback(TrainerCallback):  # type: ignore[misc]
    """Reports what the trainer logs, ends it after searcher.max_length, notes its checkpoints."""

    def __init__(self, core_context: Context, args: Any,
                 filter_metrics: Optional[List[str]] = None,
                 user_data: Optional[Dict[str, Any]] = None) -> None:
        """
        Args:
            core_context: the context of determined.core.init().
            args: the trainer's arguments; a training that goes on resumes from its checkpoint.
            filter_metrics: parts of the names of the metrics to report; None: all.
            user_data: written to my_data.json of each checkpoint.
        """
        self.core_context, self._filter, self._user_data = core_context, filter_metrics, user_data
        self.current_op = next(core_context.searcher.operations())
        newest = newest_checkpoint()
        if newest is not None and not getattr(args, "overwrite_output_dir", False):
            args.resume_from_checkpoint = core_context.checkpoint.get_metadata(newest)["of_trainer"]

    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None,
               **kwargs: Any) -> None:
        metrics = {name: value for name, value in (logs or {}).items()
                   if self._filter is None or any(part in name for part in self._filter)}
        if metrics and state.is_world_process_zero:
            kind = "validation" if any(name.startswith("eval_") for name in metrics) else "training"
            report = getattr(self.core_context.train, f"report_{kind}_metrics")
            report(state.global_step, metrics)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if max_length().unit == "batches" and state.global_step >= self.current_op.length:
            self._end(args, control)
        if self.core_context.preempt.should_preempt():
            control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if max_length().unit == "epochs" and round(state.epoch, 6) >= self.current_op.length:
            self._end(args, control)

    @staticmethod
    def _end(args: Any, control: Any) -> None:
        control.should_log = control.should_save = control.should_training_stop = True
        control.should_evaluate = str(getattr(args.eval_strategy, "value", "no")) != "no"

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Notes the trainer's checkpoint as one of this run; it stays where the trainer has it."""
        if measures() or not state.is_world_process_zero:
            return
        path = Path(args.output_dir).absolute() / f"checkpoint-{state.global_step}"
        if self._user_data is not None:
            (path / "my_data.json").write_text(json.dumps(self._user_data), encoding="utf-8")
        metadata = {"steps_completed": state.global_step, "of_trainer": str(path)}
        with self.core_context.checkpoint.store_path(metadata):
            pass
