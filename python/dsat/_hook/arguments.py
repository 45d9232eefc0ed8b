"""Sets the arguments of trainers that a trial varies, without a change of the script.

engine/config/keys.cc has their names and values, below /dsat/trainer. The profiling trial reports
which of them the script has, and their values.
"""
from __future__ import annotations

import functools
import json
import math
import os
import sys
from typing import Any, Callable, Dict, List, Optional

from dsat._hook import wrap
from dsat._trial import Trial, note_change, rank

# As submitted, of what the script has built.
submitted: Dict[str, Any] = {}
_OF_LOADERS = ("dataloader_num_workers", "dataloader_pin_memory")
# Optimizers that compute the same.
_ADAMS = ("adamw_torch", "adamw_torch_fused")


def _vary(name: str, value: Any, change: Callable[[Any], None]) -> None:
    """Says that the script has the argument with this value, and changes it if the trial does."""
    submitted.setdefault(name, value)
    given = json.loads(os.environ.get("DSAT_TRAINER") or "{}")
    if given.get(name, value) != value:
        change(given[name])
        note_change()


def change_trainer(arguments: Any, has_optimizer: bool) -> None:
    """Changes TrainingArguments. `has_optimizer`: the ds_config has one, so that theirs is idle."""
    for name in _OF_LOADERS:
        _vary(name, getattr(arguments, name), functools.partial(setattr, arguments, name))
    optimizer = str(getattr(arguments.optim, "value", arguments.optim))
    if optimizer in _ADAMS and not has_optimizer:
        _vary("optim", optimizer, lambda value: setattr(
            arguments, "optim", type(arguments.optim)(value)))


def change_loader(loader: Any) -> None:
    """Changes the first DataLoader that a script has built without TrainingArguments."""
    def change_workers(value: int) -> None:
        loader.num_workers = value
        loader.prefetch_factor = 2 if value else None
    if not submitted.keys() & set(_OF_LOADERS):
        _vary("dataloader_num_workers", loader.num_workers, change_workers)
        _vary("dataloader_pin_memory", loader.pin_memory,
              functools.partial(setattr, loader, "pin_memory"))


def change_model(module: Any) -> None:
    """Changes the models of Hugging Face in a module, before an engine gets it."""
    for model in _models(module):
        is_on = _checkpoints(model)
        if is_on is not None:
            _vary("gradient_checkpointing", is_on, lambda value: _switch(model, value))
        if hasattr(model, "set_attn_implementation"):
            _vary("attn_implementation", model.config._attn_implementation,
                  model.set_attn_implementation)


def _models(module: Any) -> List[Any]:
    """The outermost models of Hugging Face."""
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        return []
    if isinstance(module, library.PreTrainedModel):
        return [module]
    return [model for child in module.children() for model in _models(child)]


def _checkpoints(model: Any) -> Optional[bool]:
    """Whether the model recomputes activations; None if it cannot."""
    if not model.supports_gradient_checkpointing:
        return None
    new = "is_activation_checkpointing"  # The older name warns where there is a new one.
    return bool(getattr(model, new if hasattr(model, new) else "is_gradient_checkpointing"))


def _switch(model: Any, on: bool) -> None:
    kind = "activation" if hasattr(model, "is_activation_checkpointing") else "gradient"
    if on:
        getattr(model, f"{kind}_checkpointing_enable")({"use_reentrant": False})
    else:
        getattr(model, f"{kind}_checkpointing_disable")()


def prepare_experts(model: Any, section: Dict[str, Any], running: Trial) -> None:
    """Call it before an engine gets the model. `section`: expert_parallel of its config."""
    if running.is_profile or running.is_dry_run:
        count = _count_experts(model, section)
        if count:
            submitted["num_experts"] = count
    if section.get("enabled"):
        _accept_class_names()


def _count_experts(model: Any, section: Dict[str, Any]) -> int:
    """What a size that divides the experts of each layer divides; 0 if AutoEP finds none."""
    try:
        from deepspeed.module_inject.auto_ep import AutoEP
        from deepspeed.module_inject.auto_ep_config import parse_autoep_config
        from deepspeed.module_inject.auto_ep_presets.registry import preset_name_for_hf_model_type
    except ImportError:  # An older DeepSpeed.
        return 0
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if not section and preset_name_for_hf_model_type(model_type) is None:
        return 0
    try:
        layers = AutoEP(model, parse_autoep_config(section)).ep_parser()
    except ValueError as error:  # It knows the model, but not in this form.
        print(f"dsat: no expert parallelism: {error}", file=sys.stderr)
        return 0
    return math.gcd(*(layer.num_experts for layer in layers))


def _accept_class_names() -> None:
    """transformers' registry of recorded outputs takes what DeepSpeed 0.19 asks it.

    DeepSpeed asks by the name of a class and with a default; newer transformers take a model alone.
    """
    capturing = sys.modules.get("transformers.utils.output_capturing")
    registry = getattr(capturing, "_CAN_RECORD_REGISTRY", {})
    try:
        registry.get("", None)
    except TypeError:
        @wrap(type(registry), "get")
        def _get(original: Any, self: Any, model: Any, *default: Any) -> Any:
            is_name = isinstance(model, str)
            return dict.get(self, model, *default) if is_name else original(self, model)
        note_change()
        if rank() == 0:
            print("dsat: DeepSpeed's AutoEP and this release of transformers do not fit together: "
                  f"{type(registry).__name__}.get() takes names of classes and a default in this "
                  "process", file=sys.stderr)
