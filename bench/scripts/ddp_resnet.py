"""Trains a small residual network with PyTorch's DistributedDataParallel, without DeepSpeed.

usage: ddp_resnet.py BATCH_SIZE
"""
import sys

import torch
import torch.distributed as dist
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, inputs):
        return torch.relu(inputs + self.layers(inputs))


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.randn(3, 32, 32), index % 10


dist.init_process_group("gloo")
net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), *(Residual(32) for _ in range(3)),
                    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for images, labels in torch.utils.data.DataLoader(Images(), batch_size=int(sys.argv[1])):
    loss = nn.functional.cross_entropy(net(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
