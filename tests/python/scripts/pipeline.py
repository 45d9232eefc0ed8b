"""A pipeline of two stages; with `short`, of one stage, and each epoch has 15 samples."""
import sys

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.utils import RepeatingLoader
from torch import nn

deepspeed.init_distributed()


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 15 if "short" in sys.argv else 512

    def __getitem__(self, index):
        return torch.full((16,), index / 512), torch.zeros(16)


config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
model = PipelineModule([LayerSpec(nn.Linear, 16, 16) for _ in range(4)],
                       num_stages=1 if "short" in sys.argv else 2, loss_fn=nn.MSELoss())
engine, *_ = deepspeed.initialize(model=model, config=config, training_data=Pairs(),
                                  model_parameters=[p for p in model.parameters()])
while True:
    engine.train_batch()
