"""Makes libraries train with the config of a trial.

hook/sitecustomize.py says which function changes which module once it is imported. Such a function
raises AttributeError if the module is not as known. Functions of the libraries are wrapped, never replaced.
"""
from __future__ import annotations

import functools
from typing import Any, Callable

from dsat._trial import measures


def wrap(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorator: `owner.name(...)` calls the function with the original one as first argument."""
    original = getattr(owner, name)

    def decorate(function: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)
        setattr(owner, name, wrapped)
    return decorate


def leave_out(owner: Any, name: str, result: Any = None) -> None:
    """`owner.name(...)`, which would save files, only returns `result` in a measured trial."""
    wrap(owner, name)(lambda original, *args, **kwargs: (
        result if measures() else original(*args, **kwargs)))
