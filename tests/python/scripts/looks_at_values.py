"""Selects by values that depend on parameters, which fake tensors do not have."""
import torch

net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    outputs = net(torch.randn(4, 8))
    outputs[outputs > 0].sum().backward()
    optimizer.step()
