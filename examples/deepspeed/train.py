"""Trains a small GPT with DeepSpeed on synthetic text, on GPUs or on the CPU.

dsat auto -- torchrun --nproc_per_node 2 train.py --deepspeed_config ds_config.json

usage: train.py --deepspeed_config ds_config.json [--steps N] [...]
"""
import argparse

import deepspeed
import torch
from torch import nn
from torch.nn import functional as F


class GPT(nn.Module):
    """A decoder with token and position embeddings, blocks, and logits tied to the embedding."""

    def __init__(self, vocab, width, depth, heads, length):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, ids):
        inputs, targets = ids[:, :-1], ids[:, 1:]
        hidden = self.tokens(inputs) + self.positions
        hidden = self.blocks(hidden, mask=self.mask.to(hidden.dtype), is_causal=True)
        logits = F.linear(hidden, self.tokens.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class SyntheticText(torch.utils.data.Dataset):
    """Sequences that count up from a pseudo-random token; easy to learn, and all different."""

    def __init__(self, samples, vocab, length):
        self.samples, self.vocab, self.length = samples, vocab, length

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return (torch.arange(self.length + 1) + index * 7919) % self.vocab


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps")
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="tokens of a sample")
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GPT(args.vocab, args.width, args.depth, args.heads, args.length)
    data = SyntheticText(1 << 20, args.vocab, args.length)
    engine, _, loader, _ = deepspeed.initialize(args=args, model=model, training_data=data,
                                                model_parameters=model.parameters())
    while engine.global_steps < args.steps:
        for ids in loader:
            loss = engine(ids.to(engine.device))
            engine.backward(loss)
            engine.step()
            if engine.global_steps >= args.steps:
                break
    if engine.global_rank == 0:
        print(f"step {engine.global_steps}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
