"""Runs code that was written for Determined's API, without Determined.

usage: python3 -m dsat.determined [--config deepspeed.yaml] --trial MODULE:CLASS
       python3 -m dsat.determined [--config deepspeed.yaml] [python3] SCRIPT.py [ARGUMENT...]

In the ranks of a trial and of `dsat train`, hook/sitecustomize.py finds `determined` here. The
command above does the same for a run by hand, which may have a launcher before it; --config gives
it the hyperparameters of an experiment file. An installed Determined is not used: it needs a master.
"""
from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

from dsat._trial import note_change

# Determined's modules: where their names are, these names, and their submodules.
_MODULES = {
    "determined": ("dsat._determined.experiment", "LOG_FORMAT InvalidHP get_cluster_info",
                   "core integrations launch pytorch transformers"),
    "determined.core": ("dsat._determined.core", "Context DistributedContext init", ""),
    "determined.integrations": ("", "", "huggingface"),
    "determined.integrations.huggingface": ("dsat._determined.hugging_face", "DetCallback", ""),
    "determined.launch": ("", "", "deepspeed torch_distributed"),
    "determined.launch.deepspeed": ("dsat.determined", "main", ""),
    "determined.launch.torch_distributed": ("dsat.determined", "main", ""),
    "determined.pytorch": ("dsat._determined.data", "Batch DataLoader Epoch MetricReducer "
                           "PyTorchCallback TorchData", "deepspeed dsat"),
    "determined.pytorch.deepspeed": (
        "dsat._determined.driver", "DeepSpeedTrial DeepSpeedTrialContext ModelParallelUnit Trainer "
        "init make_data_parallel_mpu make_deepspeed_mpu overwrite_deepspeed_config", ""),
    "determined.pytorch.dsat": ("dsat", "dsat_reporting_context get_ds_config_from_hparams "
                                "get_hf_args_with_overwrites", ""),
    "determined.transformers": ("dsat._determined.hugging_face", "DetCallback", ""),
}


def lacks(what: str, name: str, has: str) -> str:
    """The message about a name that dsat does not have."""
    return (f"dsat: {what} has no {name!r} here; it has {', '.join(has.split())}; "
            "docs/determined.md lists what dsat has of Determined's API")


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        home, names, modules = _MODULES[self.__name__]
        if name in names.split():
            return getattr(importlib.import_module(home), name)
        if name in modules.split():
            return importlib.import_module(f"{self.__name__}.{name}")
        raise ImportError(lacks(self.__name__, name, f"{names} {modules}"))


class _Loader:
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        note_change()  # Without dsat, the script does not find these names.
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A module finds its names when they are asked for."""

    def get_code(self, name: str) -> Any:
        return compile("from dsat.determined import main; main()", name, "exec")


def find_spec(name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
    """Finds `determined` and its modules. Raises ModuleNotFoundError for those that dsat lacks.

    This module is itself a finder of sys.meta_path.
    """
    if name.partition(".")[0] != "determined":
        return None
    if name in _MODULES:
        return ModuleSpec(name, _Loader(), origin=__file__,  # type: ignore[arg-type]
                          is_package=bool(_MODULES[name][2]))
    package, _, last = name.rpartition(".")
    _, names, modules = _MODULES[package]
    raise ModuleNotFoundError(lacks(package, last, f"{names} {modules}"), name=name)


def _constants(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    is_constant = value.get("type") == "const" and value.keys() == {"type", "val"}
    return value["val"] if is_constant else {key: _constants(v) for key, v in value.items()}


def main() -> None:
    """The command of this module, and those of determined.launch."""
    parser = argparse.ArgumentParser(prog="python3 -m dsat.determined", allow_abbrev=False)
    parser.add_argument("--config", help="an experiment file, for a run by hand")
    parser.add_argument("--trial", metavar="MODULE:CLASS", help="a class of DeepSpeedTrial to train")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="or a script that trains")
    own, rest = parser.parse_known_args()
    sys.meta_path.insert(0, sys.modules[__name__])  # type: ignore[arg-type]
    if own.config:
        import yaml
        content = yaml.safe_load(Path(own.config).read_text(encoding="utf-8"))
        os.environ["DSAT_HPARAMS"] = json.dumps(_constants(content.pop("hyperparameters", {})))
        os.environ["DSAT_EXPERIMENT"] = json.dumps(content)
    if own.trial:
        sys.argv[1:] = [*rest, *own.command]
        return importlib.import_module("dsat._determined.driver").train(own.trial)
    words = own.command[own.command[:1] == ["--"]:]
    words = words[Path(words[0]).name.startswith("python") if words else 0:]
    if not words or not words[0].endswith(".py"):
        parser.error("expected --trial MODULE:CLASS, or a script that ends with .py")
    sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
