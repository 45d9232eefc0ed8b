"""Hugging Face's trainer with the config as a dict full of "auto".

With `saves`, it saves checkpoints, removes old ones, and continues from one. With `plain`, it
trains without DeepSpeed.
"""
import sys

from dsat.huggingface import DsatCallback
from small_model import Model, Tokens
from transformers import Trainer, TrainingArguments

config = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
          "train_batch_size": "auto", "gradient_clipping": "auto",
          "zero_optimization": {"stage": 0, "reduce_bucket_size": 100000},
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}}
plain = "plain" in sys.argv
arguments = TrainingArguments(output_dir="hugging_face_out",
                              per_device_train_batch_size=6 if plain else 4,
                              gradient_accumulation_steps=2 if plain else 1,
                              max_steps=50, deepspeed=None if plain else config, report_to="none",
                              save_strategy="steps" if "saves" in sys.argv else "no", save_steps=2,
                              save_total_limit=1, disable_tqdm=True, logging_steps=1, use_cpu=True)
Trainer(model=Model(), args=arguments, train_dataset=Tokens(named=True),
        callbacks=[DsatCallback()]).train(
            resume_from_checkpoint="hugging_face_out/checkpoint-1" if "saves" in sys.argv else None)
