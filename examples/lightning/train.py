"""LightningCLI, which takes the trainer from config.yaml and DeepSpeed's config from a file.

dsat auto -- torchrun --nproc_per_node 2 train.py fit --config config.yaml \
    --trainer.strategy.config ds_config.json

It needs `pip install lightning jsonargparse[signatures] deepspeed`. torchrun starts the ranks,
which Lightning would start itself where dsat does not see them.
"""
import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import nn


class OnTheCpu(DeepSpeedStrategy):
    """Lightning's own strategy, which config.yaml names on a machine with GPUs, asks for one."""
    root_device = torch.device("cpu", 0)

    def setup_environment(self):
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self):
        self.set_world_ranks()
        self._init_deepspeed_distributed()


class Network(pl.LightningModule):
    def __init__(self, width: int = 1024, lr: float = 1e-3):
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Linear(width, width),
                                    nn.GELU(), nn.Linear(width, 16))

    def training_step(self, batch, index):
        inputs, targets = batch
        return nn.functional.cross_entropy(self.layers(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Samples(pl.LightningDataModule):
    def __init__(self, batch_size: int = 4):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        inputs = torch.randn(20_000, 256, generator=torch.Generator().manual_seed(0))
        data = torch.utils.data.TensorDataset(inputs, inputs[:, :16].argmax(dim=1))
        return torch.utils.data.DataLoader(data, batch_size=self.batch_size, shuffle=True)


if __name__ == "__main__":
    LightningCLI(Network, Samples)
