"""Trains a GPT-2 with Hugging Face's Trainer, whole or only LoRA's adapters, on this folder's text.

dsat auto -- torchrun --nproc_per_node 2 finetune.py --output_dir out --deepspeed ds_config.json
dsat auto -- torchrun --nproc_per_node 2 finetune.py --lora --output_dir out --deepspeed ds_config.json

It needs `pip install transformers deepspeed` (with --lora also peft), and no download: the model is
a small one with random weights and a vocabulary of bytes. Without a GPU add --use_cpu.
"""
import pathlib
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

LENGTH = 128


class Bytes(torch.utils.data.Dataset):
    """Windows of a text file."""

    def __init__(self, path):
        self.text = torch.tensor(list(pathlib.Path(path).read_bytes()))

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        begin = index * 7919 % (len(self.text) - LENGTH)
        ids = self.text[begin:begin + LENGTH]
        return {"input_ids": ids, "labels": ids}


def main():
    words = sys.argv[1:]
    is_lora = "--lora" in words
    if is_lora:
        words.remove("--lora")
    arguments, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=256, n_layer=4,
                                       n_head=4, bos_token_id=0, eos_token_id=0, resid_pdrop=0,
                                       embd_pdrop=0, attn_pdrop=0))
    if is_lora:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=8, target_modules=["c_attn"]))
    Trainer(model=model, args=arguments, train_dataset=Bytes(__file__)).train()


if __name__ == "__main__":
    main()
