"""Trains a small network in a plain loop with accelerate, whose plugin reads ds_config.json."""
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from torch import nn

accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config="ds_config.json"))
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(),
                      nn.Linear(512, 256))
samples = torch.randn(1 << 15, 256, generator=torch.Generator().manual_seed(0))
loader = torch.utils.data.DataLoader(samples, batch_size=4, drop_last=True)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs in loader:
    with accelerator.accumulate(model):
        loss = (model(inputs) - inputs).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
