"""Tests that autocast on the CPU chooses the types that it has on GPUs."""
import subprocess
import sys

import pytest

from conftest import ROOT

TYPES = r"""
import sys
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from dsat._as_cuda import follow_cuda

RESULTS = {
    "attention": lambda: F.scaled_dot_product_attention(image, image, image),
    "convolution": lambda: F.conv2d(image, zeros(8, 8, 3, 3)),
    "cosine similarity": lambda: F.cosine_similarity(x, x),
    "cross entropy": lambda: F.binary_cross_entropy_with_logits(x, x),
    "dropout": lambda: F.dropout(x),
    "einsum": lambda: torch.einsum("abc,abd->acd", x, x),
    "exp": lambda: x.exp(),
    "gelu": lambda: F.gelu(x),
    "group norm": lambda: F.group_norm(image, 2),
    "layer norm": lambda: F.layer_norm(x, (16,), weight, weight),
    "linear": lambda: F.linear(x, zeros(16, 16)),
    "log softmax": lambda: F.log_softmax(x, -1),
    "mean": lambda: x.mean(),
    "mean square": lambda: F.mse_loss(x, x),
    "norm": lambda: x.norm(dim=-1),
    "number of a sum": lambda: (x > 0).sum(),
    "power": lambda: 2 ** x + x.pow(2),
    "product": lambda: x * weight,
    "rms norm": lambda: F.rms_norm(x, (16,), weight),
    "softmax": lambda: x.softmax(-1),
    "softmax of 64 bits": lambda: x.double().softmax(-1),
    "softmax with a type": lambda: x.softmax(-1, dtype=torch.float16),
    "softplus": lambda: F.softplus(x),
    "sum": lambda: x.sum(1),
    "upsampling": lambda: F.interpolate(image, scale_factor=2),
}
follow_cuda()
kinds = {}
with FakeTensorMode():
    for device in ("cuda", "cpu"):
        def zeros(*shape, dtype=torch.float32):
            return torch.empty(shape, device=device, dtype=dtype)
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, torch.float16)
        x, weight = zeros(4, 8, 16, dtype=torch.float16), zeros(16)
        image = zeros(4, 8, 16, 16, dtype=torch.float16)
        kinds[device] = {name: result().dtype for name, result in RESULTS.items()}
        torch.set_autocast_enabled(device, False)
assert len(set(kinds["cuda"].values())) == 4
print({name: (kinds["cpu"][name], kind) for name, kind in kinds["cuda"].items()
       if kinds["cpu"][name] != kind})

with torch.autocast("cpu", torch.bfloat16):
    x = torch.randn(3, 16, requires_grad=True)
    out = F.layer_norm(F.linear(x, torch.eye(16)), (16,))
    out.pow(2).sum().backward()
print(out.dtype, x.grad.dtype)
"""


def test_autocast_has_the_types_of_cuda():
    pytest.importorskip("torch")
    run = subprocess.run([sys.executable, "-c", TYPES], cwd=ROOT / "python", text=True, check=False,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout == "{}\ntorch.float32 torch.float32\n", run.stderr
