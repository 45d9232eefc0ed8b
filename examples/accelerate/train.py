"""A loop with accelerate, whose DeepSpeed plugin reads ds_config.json.

dsat auto -- torchrun --nproc_per_node 2 train.py --deepspeed ds_config.json

It needs `pip install accelerate deepspeed`.
"""
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed", required=True)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    plugin = DeepSpeedPlugin(hf_ds_config=args.deepspeed)
    accelerator = Accelerator(deepspeed_plugin=plugin)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(),
                          nn.Linear(2048, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    features = torch.randn(20_000, 256)
    data = torch.utils.data.TensorDataset(features, features[:, :16].argmax(dim=1))
    batch = plugin.deepspeed_config["train_micro_batch_size_per_gpu"]
    loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    while step < args.steps:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step % 50 == 0:
                accelerator.print(f"step {step}: loss {loss.item():.4f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
