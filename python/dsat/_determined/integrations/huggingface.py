"""The callback of Hugging Face's trainer."""
from dsat.determined import missing_names

from ..transformers import DetCallback

__all__ = ["DetCallback"]
__getattr__ = missing_names(__name__)
