"""Trainers that look at the DeepSpeed config before deepspeed.initialize() get the trial's, too.

Hugging Face's trainer compares the config with its own arguments, accelerate reads stage and
accumulation from it, and Lightning owns the accumulation. Each also builds the data loaders.
"""
from __future__ import annotations

from types import ModuleType
from typing import Any

from dsat._config import config_of_trial
from dsat._hook import arguments, engine, leave_out, wrap
from dsat._hook.batches import check_accumulation, rebatch
from dsat._report import add_loss
from dsat._trial import measures, note_change, trial


def change_accelerate_config(module: ModuleType) -> None:
    """The config object that accelerate's plugin and Hugging Face's trainer build."""
    @wrap(module.HfDeepSpeedConfig, "__init__")
    def _init(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        running = trial()
        if running is not None:
            check_accumulation(self.config.get("gradient_accumulation_steps"), running)
            self.config = config_of_trial(self.config, running.config, by_trainer=True)
            engine.trainer_has_config = True
            self.set_stage_and_offload()


def change_accelerate_plugin(module: ModuleType) -> None:
    """A plugin that was made from arguments, not from a config."""
    @wrap(module.DeepSpeedPlugin, "__post_init__")
    def _post_init(original: Any, self: Any) -> None:
        original(self)
        if trial() is None:
            return
        stage = self.hf_ds_config.get_value("zero_optimization.stage")
        if isinstance(stage, int):
            self.zero_stage = stage
        steps = self.hf_ds_config.get_value("gradient_accumulation_steps")
        if isinstance(steps, int):
            self.gradient_accumulation_steps = steps


def change_accelerator(module: ModuleType) -> None:
    """The script's own data loaders, as long as accelerate has not wrapped them."""
    @wrap(module.Accelerator, "prepare")
    def _prepare(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        running = trial()
        micro_batch = None if running is None else running.micro_batch_size
        if micro_batch is None or engine.trainer_knows_batch or self.deepspeed_plugin is None:
            return original(self, *args, **kwargs)
        from torch.utils.data import DataLoader
        if self.split_batches:
            micro_batch *= self.num_processes
        for loader in args:
            if isinstance(loader, DataLoader):
                rebatch(loader, micro_batch)
                arguments.change_loader(loader)
        return original(self, *args, **kwargs)

    engine.change_in_dry_run(module)
    leave_out(module.Accelerator, "save_state")  # It would also remove older states of the user.


def change_trainer(module: ModuleType) -> None:
    """A measured trial starts from the beginning and leaves the user's checkpoints alone."""
    @wrap(module.Trainer, "train")
    def _train(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if measures():
            args, kwargs = args[1:], {**kwargs, "resume_from_checkpoint": None}
        return original(self, *args, **kwargs)

    @wrap(module.Trainer, "training_step")
    def _training_step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(self, *args, **kwargs)
        if measures():
            add_loss(loss)  # The trainer has divided it by the accumulation steps.
        return loss

    leave_out(module.Trainer, "save_model")


def change_hugging_face(module: ModuleType) -> None:
    """TrainingArguments, which the trainer builds its data loader from, follow the trial."""
    @wrap(module.HfTrainerDeepSpeedConfig, "trainer_config_process")
    def _process(original: Any, self: Any, args: Any, *values: Any, **kwargs: Any) -> Any:
        running = trial()
        if running is not None:
            own = args.per_device_train_batch_size, args.gradient_accumulation_steps
            if running.micro_batch_size is not None:
                args.per_device_train_batch_size = running.micro_batch_size
                engine.trainer_knows_batch = True
            if running.accumulation_steps is not None:
                args.gradient_accumulation_steps = running.accumulation_steps
            arguments.change_trainer(args, "optimizer" in running.config)
            if own != (args.per_device_train_batch_size, args.gradient_accumulation_steps):
                note_change()
            if running.measures:
                args.save_strategy = "no"
            # It is the trainer's own computation, and wrong for tensor parallelism.
            if running.micro_batch_size is not None and running.accumulation_steps is not None:
                self.config.pop("train_batch_size", None)
        return original(self, args, *values, **kwargs)


def change_lightning(module: ModuleType) -> None:
    """The strategy, and the trainer's accumulation, which Lightning keeps out of the config."""
    @wrap(module.DeepSpeedStrategy, "_init_config_if_needed")
    def _init_config(original: Any, self: Any) -> None:
        running = trial()
        if running is not None and not self._config_initialized and isinstance(self.config, dict):
            config = config_of_trial(self.config, running.config, by_trainer=True)
            steps = config.pop("gradient_accumulation_steps", None)
            config.pop("train_batch_size", None)
            self.config = config
            engine.trainer_has_config = True
            engine.trainer_divides_loss = True
            module_ = self.lightning_module
            own = module_.trainer.accumulate_grad_batches if module_ is not None else 1
            check_accumulation(own, running, "accumulate_grad_batches of its Trainer")
            if isinstance(steps, int) and module_ is not None:
                if steps != own:
                    note_change()
                module_.trainer.accumulate_grad_batches = steps
        original(self)

    @wrap(module.DeepSpeedStrategy, "process_dataloader")
    def _process_dataloader(original: Any, self: Any, loader: Any) -> Any:
        running = trial()
        if running is not None and self.lightning_module.trainer.training:
            if running.micro_batch_size is not None:
                engine.trainer_knows_batch = True
                rebatch(loader, running.micro_batch_size)
            arguments.change_loader(loader)
        return original(self, loader)
