"""TRL's trainer for supervised fine-tuning, with a tiny model and a tokenizer made here."""
import datasets
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = [f"w{number}" for number in range(60)] + ["<pad>", "<eos>", "<unk>"]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)},
                                       unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
model = LlamaForCausalLM(LlamaConfig(vocab_size=63, hidden_size=16, intermediate_size=32,
                                     num_hidden_layers=1, num_attention_heads=2))
config = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
          "zero_optimization": {"stage": 0}, "bf16": {"enabled": "auto"},
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}}
SFTTrainer(
    model=model,
    args=SFTConfig(output_dir="trl_out", per_device_train_batch_size=4, max_steps=50, bf16=False,
                   deepspeed=config, report_to="none", save_strategy="no", disable_tqdm=True,
                   use_cpu=True, max_length=32),
    train_dataset=datasets.Dataset.from_list(
        [{"text": " ".join(words[:5 + number % 50])} for number in range(512)]),
    processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>",
                                             eos_token="<eos>", unk_token="<unk>")).train()
