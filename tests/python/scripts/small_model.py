"""A small language model and endless data, which the test scripts train."""
import torch
from torch import nn


class Model(nn.Module):
    """Returns its loss, also under the name that Hugging Face's trainer looks for."""

    def __init__(self, vocab=32, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids, labels=None):
        labels = ids if labels is None else labels
        logits = self.head(torch.relu(self.body(self.embedding(ids))))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class Tokens(torch.utils.data.Dataset):
    """Samples of eight tokens; as dictionaries if `named`."""

    def __init__(self, named=False, samples=4096):
        self.named, self.samples = named, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        ids = (torch.arange(8) + index) % 32
        return {"ids": ids, "labels": ids} if self.named else ids
