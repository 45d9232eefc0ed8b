"""Trains a small GPT-2 with Hugging Face's Trainer, whose arguments it has."""
import torch
from transformers import (GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer,
                          TrainingArguments)


class Text(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 16

    def __getitem__(self, index):
        ids = (torch.arange(64) + index * 7919) % 256
        return {"input_ids": ids, "labels": ids}


(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=2, n_head=4,
                                   bos_token_id=0, eos_token_id=0))
Trainer(model=model, args=args, train_dataset=Text()).train()
