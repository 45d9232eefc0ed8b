"""Lets PyTorch on the CPU keep what it keeps on GPUs, in the types that it has there."""
from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from dsat._hook import wrap

# Autocast computes these in 32 bits on CUDA, but not on the CPU. They are those of torch.amp's "CUDA
# Ops that can autocast to float32" that networks and losses have.
IN_32_BITS = (
    "layer_norm", "native_layer_norm", "group_norm", "rms_norm", "softmax.int", "log_softmax.int",
    "logsumexp", "cumsum", "cumprod", "sum", "sum.dim_IntList", "exp", "log", "log1p", "expm1",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "reciprocal", "rsqrt", "softplus",
    "cosine_similarity", "linalg_vector_norm", "upsample_nearest2d", "upsample_bilinear2d")

_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_library = torch.library.Library("aten", "IMPL")


def _is_wide(tensor: Any) -> bool:
    return not tensor.is_floating_point() or tensor.dtype in (torch.float32, torch.float64)


def _kernel(operator: Any) -> Any:
    names = [argument.name for argument in operator._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            given = {**dict(zip(names, args)), **kwargs}
            if "dtype" not in names:
                given = tree_map_only(
                    torch.Tensor, lambda tensor: tensor if _is_wide(tensor) else tensor.float(),
                    given)
            elif given.get("dtype") is None and not _is_wide(args[0]):
                given["dtype"] = torch.float32
            return operator(**given)
    return run


def _dropout(tensor: Any, p: float, is_training: bool) -> Any:
    """The CPU keeps a mask in the type of the tensor, and CUDA one of bytes."""
    if not is_training or p == 0:
        return tensor
    return torch.native_dropout(tensor, p, True)[0]


def follow_cuda() -> None:
    """Changes autocast and dropout on the CPU in this process. Call it once."""
    _library.impl("dropout", _dropout, "AutogradCPU")
    for name in IN_32_BITS:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        _library.impl(name, _kernel(operator), "AutocastCPU")


class Idle(int):
    """A stream, an event or another part of CUDA that does nothing. As a number it is 0."""

    def __new__(cls, *_: Any, **__: Any) -> Idle:
        return super().__new__(cls, 0)

    def __getattr__(self, name: str) -> Any:
        return Idle

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def is_library(depth: int) -> bool:
    """Whether a library has called the function that is `depth` calls above the caller."""
    caller = sys._getframe(depth + 1).f_code.co_filename
    return "site-packages" in caller or "/lib/python" in caller


def be_idle() -> None:
    """Lets a script call the functions of CUDA that fail without a GPU. Call it once."""
    def call(original: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except (AssertionError, AttributeError, ImportError, LookupError, RuntimeError):
            if is_library(2):
                raise
            return Idle()
    accelerator: Any = getattr(torch, "accelerator", torch.cuda)  # PyTorch has it since 2.6.
    for module in (torch.cuda, torch.cuda.memory, accelerator):
        for name, value in list(vars(module).items()):
            if type(value) is FunctionType:
                wrap(module, name)(call)
    for name in ("Event", "Stream", "StreamContext", "CUDAGraph", "device", "device_of", "stream"):
        setattr(torch.cuda, name, Idle)
    accelerator.device_index = Idle
    torch.cuda.nvtx = Idle()  # type: ignore[assignment]
    for name in [name for name in dir(torch.cuda) if name.endswith("Tensor")]:
        setattr(torch.cuda, name, getattr(torch, name, None))
