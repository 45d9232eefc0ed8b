"""Lightning's trainer with its DeepSpeed strategy, which wants a GPU only to be asked for one.

With `accumulates`, the trainer accumulates two batches. With `plain`, it trains without DeepSpeed.
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

    def training_step(self, ids, index):
        loss = self.model(ids)["loss"]
        self.log("my_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


plain = "plain" in sys.argv
trainer = pl.Trainer(accelerator="cpu", devices=1 if plain else 2, max_steps=50, logger=False,
                     accumulate_grad_batches=2 if "accumulates" in sys.argv else 1,
                     enable_checkpointing=False, enable_progress_bar=False,
                     enable_model_summary=False, callbacks=[DsatCallback()],
                     strategy="auto" if plain else OnTheCpu(
                         config={"zero_optimization": {"stage": 1},
                                 "zero_allow_untested_optimizer": True}))
batch_size = dsat.get_ds_config({})["train_micro_batch_size_per_gpu"] if plain else 4
trainer.fit(Module(), torch.utils.data.DataLoader(Tokens(), batch_size=batch_size))
