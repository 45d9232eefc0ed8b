"""Trains with accelerate, which gets its DeepSpeed config from its own config file."""
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator()
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
data = [torch.randn(64) for _ in range(2048)]
micro = accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"]
loader = torch.utils.data.DataLoader(data, batch_size=micro, drop_last=True)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for x in loader:
    with accelerator.accumulate(model):
        loss = (model(x) - x).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
