"""Fine-tunes a small Llama with TRL's SFTTrainer, whose arguments it has."""
import datasets
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (HfArgumentParser, LlamaConfig, LlamaForCausalLM,
                          PreTrainedTokenizerFast)
from trl import SFTConfig, SFTTrainer

WORDS = [f"w{number}" for number in range(250)] + ["<pad>", "<eos>", "<unk>"]

(args,) = HfArgumentParser(SFTConfig).parse_args_into_dataclasses()
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)},
                                       unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), hidden_size=128, num_hidden_layers=2,
                                     intermediate_size=256, num_attention_heads=4))
texts = [{"text": " ".join(WORDS[number % 200:][:40])} for number in range(4096)]
SFTTrainer(model=model, args=args, train_dataset=datasets.Dataset.from_list(texts),
           processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>",
                                                    eos_token="<eos>", unk_token="<unk>")).train()
