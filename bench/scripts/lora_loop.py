"""Trains low-rank adapters of a frozen transformer with DeepSpeed, and checkpoints activations."""
import deepspeed
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Adapted(nn.Module):
    """A frozen layer, to which the product of two narrow matrices is added."""

    def __init__(self, layer, rank=8):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, inputs):
        return self.layer(inputs) + self.up(self.down(inputs))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.qkv, self.out = Adapted(nn.Linear(width, 3 * width)), Adapted(nn.Linear(width, width))
        self.mlp = nn.Sequential(Adapted(nn.Linear(width, 4 * width)), nn.GELU(),
                                 Adapted(nn.Linear(4 * width, width)))

    def forward(self, hidden):
        batch, length, width = hidden.shape
        heads = self.qkv(self.norm(hidden)).view(batch, length, 3, 4, width // 4).permute(
            2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(hidden.shape))
        return hidden + self.mlp(hidden)


class Model(nn.Module):
    def __init__(self, width=128, words=1000):
        super().__init__()
        self.embedding = nn.Embedding(words, width).requires_grad_(False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight  # Tied.

    def forward(self, ids):
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), ids.flatten())


model = Model()
engine, _, loader, _ = deepspeed.initialize(
    model=model, config="ds_config.json", model_parameters=[
        parameter for parameter in model.parameters() if parameter.requires_grad],
    training_data=[torch.arange(64) + number % 900 for number in range(4096)])
for ids in loader:
    engine.backward(engine(ids))
    engine.step()
