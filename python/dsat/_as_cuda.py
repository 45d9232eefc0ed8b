"""Lets PyTorch on the CPU keep what it keeps on GPUs, in the types that it has there."""
from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

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
