"""GPT-2 in PyTorch, which the peers of the training benchmarks train."""
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Pre-norm attention and MLP, as in GPT-2."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.attn_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.c_attn(self.ln_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(attended.transpose(1, 2).reshape(batch, length, width))
        hidden = F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.mlp_proj(hidden)


class Gpt2(nn.Module):
    """Returns the mean loss; the head is tied to the embedding."""

    def __init__(self, shape):
        super().__init__()
        width = shape["n_embd"]
        self.wte = nn.Embedding(shape["vocab_size"], width)
        self.wpe = nn.Embedding(shape["n_positions"], width)
        self.blocks = nn.ModuleList(Block(width, shape["n_head"]) for _ in range(shape["n_layer"]))
        self.ln_f = nn.LayerNorm(width)
        for parameter in (self.wte.weight, self.wpe.weight):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
