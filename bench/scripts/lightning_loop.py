"""Trains a small network with Lightning's DeepSpeed strategy, on CPU ranks."""
import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import nn


class OnTheCpu(DeepSpeedStrategy):
    """The strategy itself asks for a GPU, without need."""
    root_device = torch.device("cpu", 0)

    def setup_environment(self):
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self):
        self.set_world_ranks()
        self._init_deepspeed_distributed()


class Network(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(),
                                    nn.Linear(512, 256))

    def training_step(self, inputs, index):
        return (self.layers(inputs) - inputs).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


samples = torch.randn(1 << 15, 256, generator=torch.Generator().manual_seed(0))
pl.Trainer(accelerator="cpu", devices=2, max_steps=100, logger=False, enable_checkpointing=False,
           enable_progress_bar=False, enable_model_summary=False,
           strategy=OnTheCpu(config="ds_config.json")).fit(
               Network(), torch.utils.data.DataLoader(samples, batch_size=4))
