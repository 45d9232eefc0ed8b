"""Lightning's trainer with its DeepSpeed strategy, which wants a GPU only to be asked for one.

With `accumulates`, the trainer accumulates two batches. With `plain`, it trains without DeepSpeed.
With `cli`, LightningCLI makes the module and the trainer from arguments. The module calls itself in
its training step.
"""
import sys

import dsat
import lightning.pytorch as pl
import torch
from dsat.lightning import DsatCallback
from lightning.pytorch.strategies import DeepSpeedStrategy
from small_model import Model, Tokens


class OnTheCpu(DeepSpeedStrategy):
    root_device = torch.device("cpu", 0)

    def setup_environment(self):
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self):
        self.set_world_ranks()
        self._init_deepspeed_distributed()


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def forward(self, ids):
        return self.model(ids)["loss"]

    def training_step(self, ids, index):
        loss = self(ids)
        self.log("my_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


plain = "plain" in sys.argv
settings = {"accelerator": "cpu", "devices": 1 if plain else 2, "max_steps": 50, "logger": False,
            "enable_checkpointing": False, "enable_progress_bar": False,
            "enable_model_summary": False, "callbacks": [DsatCallback()]}
config = {"zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}


class Data(pl.LightningDataModule):
    def __init__(self, batch_size: int = 4):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return torch.utils.data.DataLoader(Tokens(), batch_size=self.batch_size)


if "cli" in sys.argv:
    from jsonargparse import lazy_instance
    from lightning.pytorch.cli import LightningCLI
    settings["strategy"] = lazy_instance(OnTheCpu, config=config)
    LightningCLI(Module, Data, trainer_defaults=settings, save_config_callback=None,
                 args=["fit", "--trainer.accumulate_grad_batches=1", "--data.batch_size=3"])
else:
    trainer = pl.Trainer(accumulate_grad_batches=2 if "accumulates" in sys.argv else 1,
                         strategy="auto" if plain else OnTheCpu(config=config), **settings)
    batch_size = dsat.get_ds_config({})["train_micro_batch_size_per_gpu"] if plain else 4
    trainer.fit(Module(), Data(batch_size))
