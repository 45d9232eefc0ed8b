"""Compares the CPU kernels with PyTorch: kernels_torch_test.py PROGRAM.

PROGRAM is kernels_torch_test.cc, which says what it prints. Exit status 77: PyTorch is missing.
"""

import subprocess
import sys

try:
    import torch
except ImportError:
    print("skipped: no PyTorch here")
    sys.exit(77)

import torch.nn.functional as F


def values(seed, *shape):
    """Input `seed`; the C++ program has the same formula."""
    n = 1
    for size in shape:
        n *= size
    mixed = (torch.arange(n, dtype=torch.int64) * 2654435761 + seed * 97 * 40503) % 2**32
    return (mixed.double() / 2**31 - 1).float().reshape(shape)


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def gelu():
    x = leaf(6 * values(1, 100))
    y = F.gelu(x, approximate="tanh")
    y.backward(values(2, 100))
    return {"gelu.y": y, "gelu.dx": x.grad}


def layer_norm():
    N, C = 9, 21
    x, weight, bias = leaf(values(1, N, C)), leaf(values(2, C)), leaf(values(3, C))
    y = F.layer_norm(x, (C,), weight, bias, eps=1e-5)
    y.backward(values(4, N, C))
    grads = {"dx": x.grad, "dweight": weight.grad, "dbias": bias.grad}
    return {"layer_norm.y": y, **{f"layer_norm.{k}": v for k, v in grads.items()}}


def attention():
    B, T, C, H = 2, 133, 24, 3
    qkv = leaf(3 * values(1, B, T, 3 * C))
    q, k, v = (part.view(B, T, H, C // H).transpose(1, 2) for part in qkv.split(C, dim=2))
    scores = q @ k.transpose(-2, -1) / (C // H) ** 0.5
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
    out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)
    out.backward(values(2, B, T, C))
    return {"attention.out": out, "attention.dqkv": qkv.grad}


def cross_entropy():
    N, V = 11, 50
    results = {}
    for name, ignored in [("cross_entropy", N), ("masked", 4)]:
        logits = leaf(5 * values(1, N, V))
        targets = torch.arange(N) * 7 % V
        targets[ignored::3] = -100
        loss = F.cross_entropy(logits, targets, ignore_index=-100)
        loss.backward()
        results.update({f"{name}.loss": loss, f"{name}.dlogits": logits.grad})
    return results


def optimize(name, make_optimizer):
    param = leaf(values(1, 100))
    optimizer = make_optimizer([param])
    for step in range(1, 4):
        param.grad = values(step + 1, 100)
        optimizer.step()
    return {name: param}


def optimizers():
    def sgd(**options):
        return lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, **options)

    def adam(kind):
        return lambda p: kind(p, lr=0.01, weight_decay=0.1)

    return {
        **optimize("adamw.param", adam(torch.optim.AdamW)),
        **optimize("adam.param", adam(torch.optim.Adam)),
        **optimize("sgd.dampened", sgd(dampening=0.5)),
        **optimize("sgd.nesterov", sgd(nesterov=True)),
        **optimize(
            "adagrad.param", lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.01)
        ),
    }


def half():
    return {"half.round_trip": 1e4 * (1e-4 * values(1, 1000)).half().float()}


def main():
    text = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout
    printed = {}
    for line in text.splitlines():
        name, *numbers = line.split()
        printed[name] = torch.tensor([float(x) for x in numbers])
    expected = {**gelu(), **layer_norm(), **attention(), **cross_entropy(), **optimizers(), **half()}
    assert printed.keys() == expected.keys(), printed.keys() ^ expected.keys()
    failed = False
    for name, tensor in expected.items():
        tensor = tensor.detach().flatten()
        close = torch.allclose(printed[name], tensor, rtol=2e-5, atol=2e-5)
        failed |= not close
        error = (printed[name] - tensor).abs().max().item()
        print(f"{name:24} {'ok' if close else 'FAILED'}, largest difference {error:.1e}")
    sys.exit(1 if failed else 0)


main()
