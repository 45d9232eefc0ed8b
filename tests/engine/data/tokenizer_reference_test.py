"""Compares engine/data/tokenizer.h with the package tokenizers: tokenizer_reference_test.py PROGRAM.

Exit status 77: the package is missing.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    from tokenizers import AddedToken, Regex, Tokenizer
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print("skipped: no tokenizers here")
    sys.exit(77)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
UPPER_AND_LOWER = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
                   r"\d{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+|.")
CORPUS = ["The quick brown fox, it's 1234567 times faster.\n\n  Don't we'll THEY'VE\t\tgone\r\n",
          "def f(x):\n    return x  # größer als naïve Ελληνικά кириллица 日本語 한국어 عربى 🙂🙃"] * 3


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


def train(pre_tokenizer, specials, vocab_size=500):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def template(tokenizer, single):
    names = [word for word in single.split() if word != "$A"]
    return processors.TemplateProcessing(
        single=single, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names])


def gpt2():
    tokenizer = train(byte_level(), ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, {}


def gpt2_as_published():
    """Merges as strings, no type, empty affixes, and a space before the text."""
    tokenizer = train(byte_level(add_prefix_space=True), ["<|endoftext|>"])
    file = json.loads(tokenizer.to_str())
    model = file["model"]
    del model["type"], model["ignore_merges"], model["byte_fallback"]
    model["continuing_subword_prefix"] = model["end_of_word_suffix"] = ""
    model["merges"] = [" ".join(merge) for merge in model["merges"]]
    return tokenizer, file


def llama3():
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                     byte_level(use_regex=False)])
    tokenizer = train(split, [])
    # A word of the vocabulary that no merge gives, and tokens beyond the vocabulary.
    file = json.loads(tokenizer.to_str())
    file["model"]["ignore_merges"] = True
    file["model"]["vocab"]["ĠxyzzyĠ"] = len(file["model"]["vocab"])
    file["model"]["vocab"]["Ġplugh"] = len(file["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|end|>"])
    tokenizer.add_tokens([AddedToken("xyzzy", normalized=True), AddedToken("<|", normalized=True)])
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template(tokenizer, "<|begin_of_text|> $A")])
    return tokenizer, {}


def qwen2():
    """NFC, and added tokens that are looked for before and after it."""
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                     byte_level(use_regex=False)])
    tokenizer = train(split, ["<|endoftext|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<|end|>", "a\u030a"])
    tokenizer.add_tokens([AddedToken("e\u0301", normalized=True)])
    return tokenizer, {}


def other_forms():
    tokenizer = train(byte_level(), [])
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.NFKC(),
                                                 normalizers.NFD()])
    tokenizer.add_tokens([AddedToken("½", normalized=True)])
    return tokenizer, {}


def other_elements():
    split = pre_tokenizers.Sequence([
        pre_tokenizers.Split("  ", "removed"), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(Regex(UPPER_AND_LOWER), "removed", invert=True),
        byte_level(add_prefix_space=True)])
    tokenizer = train(split, ["<s>", "</s>", "日本"])
    tokenizer.post_processor = template(tokenizer, "<s> $A </s>")
    return tokenizer, {}


def random_text(draw):
    """Characters of all kinds that have existed since Unicode 3.2: later tables differ by library."""
    pieces = ["<|endoftext|>", "<|end_of_text|>", "<|end|>", "<|", "xyzzy", " xyzzy ", " plugh", "'s",
              "'S", "'\u017f", "'ll", "\r\n", "\n", "  ", " ", "\t", "\u00a0", "\u0085", "\u180e",
              "\u2003", "\u200b", "123", "٣٤٥", "Ⅷ", "½", "日本語", "é", "e\u0301", "\u0301", "\u0323", "a\u030a", "ﬁ", "각", "\u1100\u1161",
              "\u2126", "\u0344", "ÅÄÖ", "ǅ", "</s>",
              "Ġ", "!?", "…", "🙂", "👩\u200d🚀", "\0", "\x7f", "\u2028", "the", " The", "we've",
              "\ufffd", "/"]
    text = ""
    for _ in range(draw.randrange(60)):
        if draw.random() < 0.6:
            text += draw.choice(pieces)
            continue
        code = draw.choice([draw.randrange(0x80), draw.randrange(0x800), draw.randrange(0x110000)])
        if unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs"):
            text += chr(code)
    return text


def check(name, tokenizer, file, program, folder):
    if file:
        tokenizer = Tokenizer.from_str(json.dumps(file))
    path, texts_path = os.path.join(folder, "tokenizer.json"), os.path.join(folder, "texts")
    with open(path, "w", encoding="utf-8") as out:
        out.write(json.dumps(file, ensure_ascii=False) if file else tokenizer.to_str())
    draw = random.Random(name)
    texts = [""] + CORPUS + [random_text(draw) for _ in range(2000)]
    texts += [" " * 5000, "a" * 5000, "\n" * 3001 + "x"]
    with open(texts_path, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(text) + "\n" for text in texts)
    run = subprocess.run([program, path, texts_path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == len(texts)
    for text, line in zip(texts, lines):
        tokens, decoded = json.loads(line)
        expected = tokenizer.encode(text).ids
        assert tokens == expected, (name, text, tokens, expected)
        expected = tokenizer.decode(tokens, skip_special_tokens=False)
        assert decoded == expected, (name, text, decoded, expected)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for make in (gpt2, gpt2_as_published, llama3, qwen2, other_forms, other_elements):
            check(make.__name__, *make(), sys.argv[1], folder)
            print(make.__name__, "agrees")


main()
