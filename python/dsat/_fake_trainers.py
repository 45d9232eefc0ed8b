"""Changes Hugging Face's packages in a dry run."""
from __future__ import annotations

import os
import sys
from typing import Any, Callable, Dict

import numpy
import torch
from torch._subclasses.fake_tensor import FakeTensor

from dsat._hook import wrap


def _have_bf16(module: Any, _: bool) -> None:
    """bf16 asks for a GPU."""
    for owner in (module, sys.modules["transformers.utils"]):
        wrap(owner, "is_torch_bf16_gpu_available")(lambda *_: True)


def _have_fp16(module: Any, on_gpu: bool) -> None:
    """On a processor accelerate leaves fp16 out."""
    @wrap(module.Accelerator, "__init__")
    def _init(original: Any, accelerator: Any, *args: Any, **kwargs: Any) -> None:
        original(accelerator, *args, **kwargs)
        if on_gpu and accelerator.mixed_precision == "fp16" and (
                accelerator.distributed_type != module.DistributedType.DEEPSPEED):
            accelerator.native_amp = True
            accelerator.scaler = torch.amp.GradScaler("cuda")


def _have_ranks(module: Any, _: bool) -> None:
    """Without a GPU accelerate leaves a launcher's backend open, and sees one rank."""
    @wrap(module.PartialState, "_prepare_backend")
    def _prepare(original: Any, *args: Any) -> Any:
        backend, kind = original(*args)
        if backend is None and "LOCAL_RANK" in os.environ:
            return "gloo", module.DistributedType.MULTI_CPU
        return backend, kind


def _save_nothing(module: Any, _: bool) -> None:
    """Fake tensors have no values. Other modules may have imported the functions already."""
    module.save_file.__code__ = (lambda tensors, filename, metadata=None: None).__code__
    module.save.__code__ = (lambda tensors, metadata=None: b"").__code__


def _stop_at_longest(module: Any, _: bool) -> None:
    """Generated text is as long as it may be, since no fake token is its end."""
    @wrap(module.StoppingCriteriaList, "__call__")
    def _call(original: Any, criteria: Any, tokens: Any, *args: Any, **kwargs: Any) -> Any:
        is_done, longest = original(criteria, tokens, *args, **kwargs), criteria.max_length
        if longest is None or not isinstance(is_done, FakeTensor):
            return is_done
        return torch.full(is_done.shape, tokens.shape[1] >= longest)


def _generate_data(module: Any, _: bool) -> None:
    """Generated tokens are data, so they become real ones that mean nothing."""
    @wrap(module.GenerationMixin, "generate")
    def _generate(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(model, *args, **kwargs)
        tokens = getattr(result, "sequences", result)
        if not isinstance(tokens, FakeTensor):
            return result
        settings = model.generation_config
        special = {settings.bos_token_id, settings.pad_token_id,
                   *numpy.atleast_1d(settings.eos_token_id)}
        token = next(number for number in range(len(special) + 1) if number not in special)
        real = torch.full(tokens.shape, token, dtype=tokens.dtype)
        if tokens is result:
            return real
        result.sequences = real
        return result


# The second argument of a change is whether the answer is for a GPU.
CHANGES: Dict[str, Callable[[Any, bool], None]] = {
    "accelerate.accelerator": _have_fp16, "accelerate.state": _have_ranks,
    "safetensors.torch": _save_nothing,
    "transformers.generation.stopping_criteria": _stop_at_longest,
    "transformers.generation.utils": _generate_data,
    "transformers.training_args": _have_bf16}
