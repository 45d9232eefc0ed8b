"""Makes libraries train with the config of a trial; called when they are imported.

hook/sitecustomize.py says which function changes which module. It raises AttributeError if the
module is not as known. Functions of the libraries are wrapped, never replaced.
"""
from __future__ import annotations

import functools
from typing import Any, Callable

def wrap(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorator: `owner.name(...)` calls the function with the original one as first argument."""
    original = getattr(owner, name)

    def decorate(function: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)
        setattr(owner, name, wrapped)
    return decorate
