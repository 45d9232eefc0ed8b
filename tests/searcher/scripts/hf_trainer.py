"""Trains a small language model with Hugging Face's Trainer."""
import sys

import torch
from torch import nn
from transformers import HfArgumentParser, PretrainedConfig, Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = PretrainedConfig(hidden_size=32)  # Fills in "auto" bucket sizes.
        self.tokens = nn.Embedding(64, 32)
        self.logits = nn.Linear(32, 64)

    def forward(self, input_ids, labels):
        logits = self.logits(self.tokens(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class Text(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        ids = (torch.arange(17) + index) % 64
        return {"input_ids": ids[:-1], "labels": ids[1:]}


parser = HfArgumentParser(TrainingArguments)
(args,) = (parser.parse_yaml_file(sys.argv[1]) if sys.argv[1].endswith(".yaml")
           else parser.parse_args_into_dataclasses())
Trainer(model=Model(), args=args, train_dataset=Text()).train()
