"""Writes a tiny language model of Hugging Face with its tokenizer, and texts to train on."""
import json
import pathlib

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

words = {"[UNK]": 0, "[PAD]": 1, "</s>": 2, **{f"w{at}": at + 3 for at in range(61)}}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]",
                        eos_token="</s>").save_pretrained("tiny")
GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64,
                           bos_token_id=2, eos_token_id=2)).save_pretrained("tiny")
pathlib.Path("texts").mkdir()
pathlib.Path("texts/train.jsonl").write_text("".join(
    json.dumps({"text": " ".join(f"w{(at + 7 * word) % 61}" for word in range(40))}) + "\n"
    for at in range(512)))
