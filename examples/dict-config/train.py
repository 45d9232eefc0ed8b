"""Trains a classifier with DeepSpeed; the config is a dictionary in this file.

dsat auto deepspeed.yaml

Nothing has to change: deepspeed.initialize() gets each trial's config, and the DataLoader, which
has the dictionary's micro-batch size, follows.
"""
import deepspeed
import torch
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}
FEATURES, CLASSES, STEPS = 64, 10, 200


class Points(torch.utils.data.Dataset):
    """Random points that belong to the nearest of a few random centers."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.centers = torch.randn(CLASSES, FEATURES, generator=generator)

    def __len__(self):
        return 1 << 18

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        label = index % CLASSES
        return self.centers[label] + torch.randn(FEATURES, generator=generator), label


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(),
                          nn.Linear(512, CLASSES))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=CONFIG)
    points = Points()
    loader = torch.utils.data.DataLoader(
        points, batch_size=CONFIG["train_micro_batch_size_per_gpu"],
        sampler=torch.utils.data.DistributedSampler(points), drop_last=True)
    for inputs, labels in loader:
        outputs = engine(inputs.to(engine.device))
        loss = nn.functional.cross_entropy(outputs, labels.to(engine.device))
        engine.backward(loss)
        engine.step()
        if engine.global_steps >= STEPS:
            break
    if engine.global_rank == 0:
        print(f"step {engine.global_steps}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
