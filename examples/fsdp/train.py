"""Trains a small GPT with PyTorch's own FSDP, without DeepSpeed, and can be tuned by dsat.

dsat random deepspeed.yaml --zero-stages 2 3

usage: train.py --ds_config ds_config.json [--steps N]

Each trial has another config file. This script reads the micro-batch size, the accumulation
steps and the ZeRO stage from it: at stage 2 FSDP shards gradients and optimizer states, at stage 3
also parameters. After each optimizer step it calls dsat.report(), which does nothing without dsat.
"""
import argparse
import json
import os
import pathlib

import dsat
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCAB, WIDTH, DEPTH, HEADS, LENGTH = 256, 64, 2, 4, 32


class GPT(nn.Module):
    """A decoder that returns its loss."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True,
                                       norm_first=True) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, VOCAB)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, ids):
        hidden = self.tokens(ids[:, :-1]) + self.positions
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), ids[:, 1:].flatten())


class SyntheticText(Dataset):
    """Sequences that count up from a pseudo-random token."""

    def __len__(self):
        return 1 << 16

    def __getitem__(self, index):
        return (torch.arange(LENGTH + 1) + index * 7919) % VOCAB


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ds_config", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps")
    args = parser.parse_args()
    config = json.loads(args.ds_config.read_text())
    stage = config["zero_optimization"]["stage"]
    if stage not in (2, 3):
        raise ValueError(f"{args.ds_config}: stage {stage}: FSDP shards like stage 2 or 3; search "
                         "with --zero-stages 2 3")
    micro_batch = config["train_micro_batch_size_per_gpu"]
    accumulation = config["gradient_accumulation_steps"]

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = GPT().to(device)
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=stage == 3)
    fully_shard(model, mesh=mesh, reshard_after_forward=stage == 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["optimizer"]["params"]["lr"])
    data = SyntheticText()
    batches = iter(DataLoader(data, micro_batch, sampler=DistributedSampler(data), drop_last=True))
    for step in range(args.steps):
        for micro_step in range(accumulation):
            model.set_requires_gradient_sync(micro_step == accumulation - 1)
            loss = model(next(batches).to(device))
            (loss / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()
        dsat.report(loss=loss, model=model,
                    samples=micro_batch * accumulation * dist.get_world_size())
    if dist.get_rank() == 0:
        print(f"step {args.steps}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
