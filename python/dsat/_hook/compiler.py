"""torch._dynamo, PyTorch's compiler, is loaded when a script uses it.

PyTorch's optimizers import it only to keep it away from their own code, and loading it is a third
of the start of a script that compiles nothing. Until an attribute of it is used that matters while
something is compiled, the module has only those that do nothing otherwise.
"""
from __future__ import annotations

import functools
import importlib
import sys
import threading
from types import FunctionType, ModuleType
from typing import Any, List

from dsat._hook import wrap
from dsat._trial import measures

NAME = "torch._dynamo"


class _Rules:
    """torch._dynamo.trace_rules, whose caches torch.distributed clears."""

    def clear_lru_cache(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(f"{NAME}.trace_rules"), name)


class _Deferred(ModuleType):
    """The module before its code has run."""

    def __getattr__(self, name: str) -> Any:
        self.__dict__["__dsat_loader__"].load(self)
        return ModuleType.__getattribute__(self, name)


class Loader:
    """Creates the module, and runs its code when that is needed."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._lock = threading.RLock()
        self._state = "deferred"  # Then "loading", then "loaded".

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        def disable(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(fn, FunctionType):
                return self._disable_later(module, fn, *args, **kwargs)
            self.load(module)
            return module.disable(fn, *args, **kwargs)

        def graph_break(*_args: Any, **_kwargs: Any) -> None:
            pass

        module.__dict__.update(disable=disable, graph_break=graph_break, trace_rules=_Rules(),
                               __dsat_loader__=self)
        del module.__path__  # The import of a name or a submodule asks for it, and loads.
        module.__class__ = _Deferred

    def _disable_later(self, module: ModuleType, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """A function that calls `fn`, and keeps the compiler away from it once there is one."""
        disabled: List[Any] = []  # The compiler follows no functools.cache.

        @functools.wraps(fn)
        def run(*values: Any, **named: Any) -> Any:
            if self._state != "loaded":
                return fn(*values, **named)
            if not disabled:
                disabled.append(module.disable(fn, *args, **kwargs))
            return disabled[0](*values, **named)
        return run

    def load(self, module: ModuleType) -> None:
        """Runs the module's code, once."""
        with self._lock:
            if self._state != "deferred":
                return
            self._state = "loading"
            for name in ("disable", "graph_break", "trace_rules"):
                delattr(module, name)
            spec: Any = module.__spec__
            module.__path__ = spec.submodule_search_locations
            spec.loader = module.__loader__ = self._loader
            try:
                self._loader.exec_module(module)
            except BaseException:
                sys.modules.pop(NAME, None)
                raise
            module.__class__ = ModuleType
            self._state = "loaded"


def loader_of(loader: Any) -> Any:
    """The loader to use instead of the module's own one."""
    return Loader(loader) if measures() else loader


def change(_: ModuleType) -> None:
    """DeepSpeed's decorator compiles a function when it is called first, not when it is defined.

    To see whether an optimizer is its Muon, DeepSpeed imports Muon's functions, which have it.
    """
    decorators = sys.modules.get("deepspeed.runtime.compiler")
    if decorators is None or not hasattr(decorators, "compile"):
        return  # An older DeepSpeed.

    @wrap(decorators, "compile")
    def _compile(original: Any, *args: Any, **kwargs: Any) -> Any:
        if args or not measures():
            return original(*args, **kwargs)

        def decorate(function: Any) -> Any:
            compiled: List[Any] = []

            @functools.wraps(function)
            def run(*values: Any, **named: Any) -> Any:
                if not compiled:
                    compiled.append(original(**kwargs)(function))
                return compiled[0](*values, **named)
            return run
        return decorate
