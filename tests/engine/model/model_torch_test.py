"""Compares whole models with PyTorch: model_torch_test.py PROGRAM.

PROGRAM is model_torch_test.cc. GPT-2 and Llama are written as Hugging Face has them (config.json and
safetensors, whole and in shards), read by PROGRAM, and compared in logits, loss and gradients with the
models below; their logits also with the transformers package, where it is installed. Exit status 77:
PyTorch is missing.
"""

import json
import math
import os
import struct
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError:
    print("skipped: no PyTorch here")
    sys.exit(77)

import torch.nn.functional as F

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.bool: "BOOL"}


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        raw = bytes(tensor.view(torch.uint8).flatten().tolist())
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def values(seed, *shape):
    """Input `seed`; the C++ program has the same formula."""
    mixed = (torch.arange(math.prod(shape), dtype=torch.int64) * 2654435761 + seed * 97 * 40503) % 2**32
    return (mixed.double() / 2**31 - 1).float().reshape(shape)


def normal(generator, *shape, around=0.0):
    return around + 0.2 * torch.randn(*shape, generator=generator)


def attend(q, k, v):
    """(B, T, heads, channels) each; every head of k serves several of q."""
    T, groups = q.shape[1], q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def gpt2(p, config, tokens):
    C, heads = config["n_embd"], config["n_head"]
    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]

    def norm(x, name):
        return F.layer_norm(x, (C,), p[name + ".weight"], p[name + ".bias"])

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    for i in range(config["n_layer"]):
        h = f"h.{i}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn").unflatten(-1, (3 * heads, -1))
        x = x + linear(attend(*qkv.split(heads, dim=2)), h + "attn.c_proj")
        hidden = F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + linear(hidden, h + "mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


def gpt2_params(config, g):
    C, V, T = config["n_embd"], config["vocab_size"], config["n_positions"]
    p = {"wte.weight": normal(g, V, C), "wpe.weight": normal(g, T, C)}
    for i in range(config["n_layer"]):
        for name, shape in [("attn.c_attn", (C, 3 * C)), ("attn.c_proj", (C, C)), ("mlp.c_fc", (C, 4 * C)),
                            ("mlp.c_proj", (4 * C, C))]:
            p[f"h.{i}.{name}.weight"] = normal(g, *shape)
            p[f"h.{i}.{name}.bias"] = normal(g, shape[1])
    for name in [f"h.{i}.ln_{j}" for i in range(config["n_layer"]) for j in (1, 2)] + ["ln_f"]:
        p[name + ".weight"], p[name + ".bias"] = normal(g, C, around=1), normal(g, C)
    return p


def rotary_frequencies(config, channels):
    frequencies = config["rope_theta"] ** (-torch.arange(0, channels, 2).double() / channels)
    scaling = config.get("rope_scaling")
    if scaling:
        turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * (keep + (1 - keep) / scaling["factor"])
    return frequencies


def llama(p, config, tokens):
    heads = config["num_attention_heads"]
    channels = config["hidden_size"] // heads
    angles = torch.arange(tokens.shape[1]).double()[:, None] * rotary_frequencies(config, channels)
    cos, sin = (f(torch.cat([angles, angles], -1)).float()[:, None] for f in (torch.cos, torch.sin))

    def rotate(x):
        half = channels // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * p[name + ".weight"]

    def linear(x, name):
        return x @ p[name + ".weight"].T

    x = p["model.embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        h = f"model.layers.{i}."
        n = norm(x, h + "input_layernorm")
        q, k, v = (linear(n, f"{h}self_attn.{s}_proj").unflatten(-1, (-1, channels)) for s in "qkv")
        x = x + linear(attend(rotate(q), rotate(k), v), h + "self_attn.o_proj")
        n = norm(x, h + "post_attention_layernorm")
        hidden = F.silu(linear(n, h + "mlp.gate_proj")) * linear(n, h + "mlp.up_proj")
        x = x + linear(hidden, h + "mlp.down_proj")
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "model.norm") @ p[head].T


def llama_params(config, g):
    C, V, wide = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    kv = C // config["num_attention_heads"] * config["num_key_value_heads"]
    p = {"model.embed_tokens.weight": normal(g, V, C), "model.norm.weight": normal(g, C, around=1)}
    if not config["tie_word_embeddings"]:
        p["lm_head.weight"] = normal(g, V, C)
    for i in range(config["num_hidden_layers"]):
        h = f"model.layers.{i}."
        for name, shape in [("self_attn.q_proj", (C, C)), ("self_attn.k_proj", (kv, C)), ("self_attn.v_proj", (kv, C)),
                            ("self_attn.o_proj", (C, C)), ("mlp.gate_proj", (wide, C)), ("mlp.up_proj", (wide, C)),
                            ("mlp.down_proj", (C, wide))]:
            p[f"{h}{name}.weight"] = normal(g, *shape)
        for name in ["input_layernorm", "post_attention_layernorm"]:
            p[f"{h}{name}.weight"] = normal(g, C, around=1)
    return p


def as_ours(name, gradients):
    """The gradient of PROGRAM's parameter `name`, out of those of PyTorch's."""
    for packed, parts in [("qkv", ("q", "k", "v")), ("gate_up", ("gate", "up"))]:
        if f".{packed}_proj" in name:
            parts = [gradients[name.replace(packed + "_proj", part + "_proj")].T for part in parts]
            return torch.cat(parts, dim=1)
    return gradients[name].T if "_proj.weight" in name and "c_proj" not in name else gradients[name]


def resnet(p, tokens, images):
    def conv_norm(x, conv, norm, stride=1):
        weight = p[conv + ".weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        return F.group_norm(x, 2, p[norm + ".weight"], p[norm + ".bias"])

    x = conv_norm(images, "conv1", "norm1").relu()
    for stage in (1, 2, 3):
        h, stride = f"layer{stage}.0.", 1 if stage == 1 else 2
        y = conv_norm(conv_norm(x, h + "conv1", h + "norm1", stride).relu(), h + "conv2", h + "norm2")
        x = (y + (x if stage == 1 else conv_norm(x, h + "downsample.0", h + "downsample.1", 2))).relu()
    return x.mean((2, 3)) @ p["fc.weight"] + p["fc.bias"]


def run(program, folder, case):
    path = os.path.join(folder, "case.json")
    with open(path, "w") as file:
        json.dump(case, file)
    text = subprocess.run([program, path], check=True, capture_output=True, text=True).stdout
    lines = (line.split() for line in text.splitlines())
    return {name: torch.tensor([float(x) for x in numbers]) for name, *numbers in lines}


class Comparison:
    failed = False

    def check(self, name, actual, expected, tolerance=1e-4):
        expected = expected.detach().float().flatten()
        error = (actual - expected).abs().max().item() / max(1.0, expected.abs().max().item())
        ok = actual.shape == expected.shape and error < tolerance
        self.failed |= not ok
        print(f"{name:56} {'ok' if ok else 'FAILED'}, largest difference {error:.1e}")


def check_gradients(comparison, title, printed, logits, targets, params):
    loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
    loss.backward()
    comparison.check(title + " loss", printed["loss"], loss)
    gradients = {name: p.grad for name, p in params.items()}
    worst = Comparison()
    for name in printed.keys() - {"logits", "loss"}:
        actual, expected = printed[name], as_ours(name, gradients).flatten()
        if not torch.allclose(actual, expected, rtol=1e-3, atol=1e-4 * (1 + expected.abs().max().item())):
            worst.check(f"{title} {name}", actual, expected, 0)
    comparison.failed |= worst.failed
    print(f"{title + ' gradients':56} {'FAILED' if worst.failed else 'ok'}, {len(printed) - 2} tensors")


def check_transformers(comparison, title, kind, config, params, tokens, logits):
    try:
        import transformers
    except ImportError:
        print("transformers is not installed: its models are not compared")
        return
    model_class, config_class = {
        "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config),
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig),
    }[kind]
    model = model_class(config_class(**config)).eval()
    prefix = "transformer." if kind == "gpt2" else ""
    missing, unexpected = model.load_state_dict({prefix + n: p.detach() for n, p in params.items()}, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    comparison.check(title + " logits of transformers", logits, model(tokens).logits[:, -1])


def check_language_model(comparison, program, kind, config, dtype, write, title):
    g = torch.Generator().manual_seed(len(title))
    make_params, forward = {"gpt2": (gpt2_params, gpt2), "llama": (llama_params, llama)}[kind]
    stored = {name: p.to(dtype) for name, p in make_params(config, g).items()}
    tokens = torch.randint(config["vocab_size"], (2, 8), generator=g)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump({**config, "model_type": kind, "torch_dtype": "float32", "bos_token_id": 1}, file)
        model = {"type": kind, "config": "config.json", "weights": write(folder, stored)}
        printed = run(program, folder, {"model": model, "tokens": tokens.tolist()})
    params = {name: p.float().requires_grad_() for name, p in stored.items()}
    logits = forward(params, config, tokens[:, :-1])
    comparison.check(title + " logits", printed["logits"], logits[:, -1])
    check_gradients(comparison, title, printed, logits, tokens[:, 1:], params)
    check_transformers(comparison, title, kind, config, params, tokens[:, :-1], printed["logits"])


def whole(folder, tensors):
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    return "model.safetensors"


def with_prefix_and_buffers(folder, tensors):
    tensors = {"transformer." + name: p for name, p in tensors.items()}
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4).bool()
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    return whole(folder, tensors)


def sharded(folder, tensors):
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        write_safetensors(os.path.join(folder, file), {name: tensors[name] for name in part})
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump(index, file)
    return "model.safetensors.index.json"


def check_resnet(comparison, program):
    shape = {"type": "resnet", "depth": 8, "width": 4, "groups": 2, "image_size": 9, "channels": 3, "classes": 7}
    with tempfile.TemporaryDirectory() as folder:
        printed = run(program, folder, {"model": shape, "images": 5})
    params = {}
    for k, name in enumerate(n for n in printed if n not in ("logits", "loss")):
        stage = int(name[5]) if name.startswith("layer") else 1
        out, into = 4 << (stage - 1), 4 << (stage - 2) if stage > 1 else 4
        shapes = {"conv1.weight": (4, 3, 3, 3), "fc.weight": (16, 7), "fc.bias": (7,)}
        if name.endswith("conv1.weight") and "layer" in name:
            shapes[name] = (out, into, 3, 3)
        elif name.endswith("conv2.weight"):
            shapes[name] = (out, out, 3, 3)
        elif name.endswith("downsample.0.weight"):
            shapes[name] = (out, into, 1, 1)
        is_norm = "norm" in name or "downsample.1" in name
        center = 1.0 if is_norm and name.endswith("weight") else 0.0
        params[name] = (center + 0.3 * values(k + 1, *shapes.get(name, (out,)))).requires_grad_()
    images = values(1000, 5, 9, 9, 3).permute(0, 3, 1, 2)
    logits = resnet(params, None, images)
    comparison.check("resnet logits", printed["logits"], logits)
    check_gradients(comparison, "resnet", printed, logits, torch.arange(5) * 3 % 7, params)


def check_mlp(comparison, program):
    config = {"type": "mlp", "context": 3, "embedding": 4, "hidden": [10, 7], "vocab_size": 11}
    shapes = {"wte.weight": (11, 4), "hidden.0.weight": (12, 10), "hidden.0.bias": (10,), "hidden.1.weight": (10, 7),
              "hidden.1.bias": (7,), "head.weight": (7, 11), "head.bias": (11,)}
    tokens = torch.arange(18).reshape(3, 6) * 5 % 11
    with tempfile.TemporaryDirectory() as folder:
        printed = run(program, folder, {"model": config, "tokens": tokens.tolist()})
    p = {name: (0.3 * values(k + 1, *shape)).requires_grad_() for k, (name, shape) in enumerate(shapes.items())}
    # Before the first token there are tokens 0.
    x = p["wte.weight"][F.pad(tokens[:, :-1], (2, 0)).unfold(1, 3, 1)].flatten(2)
    for layer in ("hidden.0", "hidden.1"):
        x = (x @ p[layer + ".weight"] + p[layer + ".bias"]).relu()
    logits = x @ p["head.weight"] + p["head.bias"]
    comparison.check("mlp logits", printed["logits"], logits[:, -1])
    check_gradients(comparison, "mlp", printed, logits, tokens[:, 1:], p)


def main():
    comparison, program = Comparison(), sys.argv[1]
    gpt2_config = {"n_layer": 2, "n_embd": 24, "n_head": 3, "n_positions": 16, "vocab_size": 127}
    llama_config = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
                    "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 61}
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 16}
    scaled_config = {**llama_config, "rope_scaling": scaling, "tie_word_embeddings": True}
    for kind, config, dtype, write, title in [
        ("gpt2", gpt2_config, torch.float32, with_prefix_and_buffers, "gpt2, prefix and buffers"),
        ("gpt2", gpt2_config, torch.float16, whole, "gpt2, f16"),
        ("llama", llama_config, torch.float32, sharded, "llama, shards"),
        ("llama", scaled_config, torch.bfloat16, whole, "llama, bf16, tied, scaled"),
    ]:
        check_language_model(comparison, program, kind, config, dtype, write, title)
    check_resnet(comparison, program)
    check_mlp(comparison, program)
    sys.exit(1 if comparison.failed else 0)


if __name__ == "__main__":
    main()
