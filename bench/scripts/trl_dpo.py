"""Aligns a small Llama with pairs of answers by TRL's DPOTrainer, whose arguments it has."""
import datasets
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (HfArgumentParser, LlamaConfig, LlamaForCausalLM,
                          PreTrainedTokenizerFast)
from trl import DPOConfig, DPOTrainer

WORDS = [f"w{number}" for number in range(250)] + ["<pad>", "<eos>", "<unk>"]

(args,) = HfArgumentParser(DPOConfig).parse_args_into_dataclasses()
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)},
                                       unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
shape = LlamaConfig(vocab_size=len(WORDS), hidden_size=128, num_hidden_layers=2,
                    intermediate_size=256, num_attention_heads=4)
pairs = [{"prompt": " ".join(WORDS[number % 200:][:20]),
          "chosen": " " + " ".join(WORDS[number % 190:][:12]),
          "rejected": " " + " ".join(WORDS[number % 180:][:12])} for number in range(4096)]
DPOTrainer(model=LlamaForCausalLM(shape), ref_model=LlamaForCausalLM(shape), args=args,
           train_dataset=datasets.Dataset.from_list(pairs),
           processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>",
                                                    eos_token="<eos>", unk_token="<unk>")).train()
