"""The launchers of a cluster. Here the ranks exist already, and each of them runs the command."""
from dsat.determined import missing_names

__all__ = ["deepspeed", "torch_distributed"]
__getattr__ = missing_names(__name__)
