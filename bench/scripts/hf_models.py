"""Trains a small model of Hugging Face by its Trainer.

usage: hf_models.py bert|t5|vit ARGUMENTS_OF_THE_TRAINER
"""
import sys

import torch
from transformers import (BertConfig, BertForSequenceClassification, HfArgumentParser, T5Config,
                          T5ForConditionalGeneration, Trainer, TrainingArguments, ViTConfig,
                          ViTForImageClassification)


def bert():
    shape = BertConfig(vocab_size=500, hidden_size=96, num_hidden_layers=3, num_attention_heads=4,
                       intermediate_size=384, num_labels=4)
    return BertForSequenceClassification(shape), lambda index: {
        "input_ids": (torch.arange(48) + index) % 500, "labels": index % 4}


def t5():
    shape = T5Config(vocab_size=500, d_model=96, d_ff=256, d_kv=24, num_layers=2, num_heads=4,
                     decoder_start_token_id=0)
    return T5ForConditionalGeneration(shape), lambda index: {
        "input_ids": (torch.arange(48) + index) % 500, "labels": (torch.arange(16) + index) % 500}


def vit():
    shape = ViTConfig(image_size=32, patch_size=4, hidden_size=96, num_hidden_layers=3,
                      num_attention_heads=4, intermediate_size=384, num_labels=4)
    return ViTForImageClassification(shape), lambda index: {
        "pixel_values": torch.full((3, 32, 32), index % 7 / 7), "labels": index % 4}


class Samples(torch.utils.data.Dataset):
    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return self.sample(index)


(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(sys.argv[2:])
torch.manual_seed(0)
model, sample = {"bert": bert, "t5": t5, "vit": vit}[sys.argv[1]]()
Trainer(model=model, args=args, train_dataset=Samples(sample)).train()
