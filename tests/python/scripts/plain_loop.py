"""Trains two layers without DeepSpeed."""
import torch
from torch import nn

net = nn.Sequential(nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 32, bias=False))
optimizer = torch.optim.AdamW(net.parameters())
for inputs, in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(512, 32)), batch_size=4):
    loss = (net(inputs) - inputs).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert loss.item() == loss.item(), "the loss is NaN"
