"""Where later releases have the callback of Hugging Face's trainer."""
from dsat.determined import missing_names

__all__ = ["huggingface"]
__getattr__ = missing_names(__name__)
