"""Trains a small model of Hugging Face that checkpoints activations, if its arguments say so."""
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Text(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        ids = (torch.arange(128) + index) % 64
        return {"input_ids": ids, "labels": ids}


class Watched(Trainer):
    def training_step(self, *args, **kwargs):
        if self.state.global_step == 0:
            optimizer = self.accelerator.deepspeed_engine_wrapped.engine.optimizer.optimizer
            print("runs", any(getattr(part, "gradient_checkpointing", False)
                              for part in self.model.modules()),
                  self.model.config._attn_implementation, bool(optimizer.defaults["fused"]),
                  self.get_train_dataloader().num_workers)
        return super().training_step(*args, **kwargs)


torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(
    vocab_size=64, n_embd=64, n_layer=4, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=1,
    attn_implementation="eager", attn_pdrop=0, embd_pdrop=0, resid_pdrop=0))
Watched(model=model, train_dataset=Text(), args=TrainingArguments(
    "out", deepspeed={"zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True},
    per_device_train_batch_size=8, max_steps=30, gradient_checkpointing="on" in sys.argv,
    use_cpu=True, report_to=[], optim="adamw_torch")).train()
