"""Trains the small convolutional network of DeepSpeed's CIFAR example on random images.

usage: cifar.py --deepspeed --deepspeed_config ds_config.json
"""
import argparse

import deepspeed
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, images):
        hidden = self.pool(F.relu(self.conv1(images)))
        hidden = self.pool(F.relu(self.conv2(hidden))).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(hidden)))))


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 50_000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator), index % 10


parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = deepspeed.add_config_arguments(parser).parse_args()
net = Net()
engine, _, loader, _ = deepspeed.initialize(args=args, model=net, training_data=Images(),
                                            model_parameters=net.parameters())
for images, labels in loader:
    loss = F.cross_entropy(engine(images.to(engine.device)), labels.to(engine.device))
    engine.backward(loss)
    engine.step()
