"""Makes libraries train with the config of a trial; called when they are imported.

hook/sitecustomize.py calls change() for each module that it knows. Functions of the libraries are
wrapped, never replaced.
"""
from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any, Callable

# The parts of the hook for modules that are no trainers.
_PARTS = {"deepspeed": "engine", "deepspeed.comm.comm": "launch",
           "torch.distributed.distributed_c10d": "launch", "torch.optim.optimizer": "unseen",
           "accelerate.commands.launch": "launch", "deepspeed.launcher.runner": "launch"}


def change(module: ModuleType) -> None:
    """Changes a module that has just been imported. Raises AttributeError if it is not as known."""
    name = _PARTS.get(module.__name__, "trainers")
    importlib.import_module(f"dsat._hook.{name}").change(module)


def wrap(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorator: `owner.name(...)` calls the function with the original one as first argument."""
    original = getattr(owner, name)

    def decorate(function: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)
        setattr(owner, name, wrapped)
    return decorate
