"""Loaders, reducers and callbacks of trial classes."""
from __future__ import annotations

from typing import Any, Dict

from dsat.determined import missing_names

from .._loaders import DataLoader
from .._reducers import MetricReducer

TorchData = Any  # A batch: tensors, in lists and mappings.


class PyTorchCallback:
    """The base of callbacks, of which a class defines the methods on_... that it needs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *arguments, **keywords: None
        raise AttributeError(name)

    def state_dict(self) -> Dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes what state_dict() returned when a checkpoint was saved."""


__all__ = ["DataLoader", "MetricReducer", "PyTorchCallback", "TorchData", "deepspeed", "dsat"]
__getattr__ = missing_names(__name__)
