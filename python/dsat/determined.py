"""Runs code that was written for Determined's API, without Determined.

usage: python3 -m dsat.determined [--config deepspeed.yaml] --trial MODULE:CLASS
       python3 -m dsat.determined [--config deepspeed.yaml] [python3] SCRIPT.py [ARGUMENT...]

In the ranks of a trial and of `dsat train`, hook/sitecustomize.py lets `import determined` find the
package in dsat/_determined. The command above does the same for a run by hand, which may have a
launcher before it, and --config gives it the hyperparameters of an experiment file. A Determined
that is installed is not used, because it needs a master.
"""
from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence

_FOLDER = Path(__file__).with_name("_determined")
_PAGE = "docs/determined.md lists what dsat has of Determined's API"


def find_spec(name: str, path: Optional[Sequence[str]] = None,
              target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
    """Finds `determined` and its modules. Raises ModuleNotFoundError for modules that it lacks."""
    if name == "determined":
        return importlib.util.spec_from_file_location(
            name, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)])
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None:
        package, _, last = name.rpartition(".")
        raise ModuleNotFoundError(_lacks(package, last), name=name)
    return spec


def _lacks(module: str, name: str) -> str:
    has = ", ".join(sys.modules[module].__all__)
    return f"dsat: {module} has no {name!r} here; it has {has}; {_PAGE}"


def missing_names(module: str) -> Callable[[str], Any]:
    """Returns the __getattr__ of a module, which imports its submodules and names what is missing."""
    def get(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in sys.modules[module].__all__ and hasattr(sys.modules[module], "__path__"):
            return importlib.import_module(f"{module}.{name}")
        raise ImportError(_lacks(module, name))  # `from ... import` would hide an AttributeError.
    return get


class Named:
    """An object whose missing attributes are named together with those that it has."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        has = ", ".join(each for each in dir(self) if not each.startswith("_"))
        raise AttributeError(
            f"dsat: {type(self).__name__} has no {name!r} here; it has {has}; {_PAGE}")


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return find_spec(name, path) if name.partition(".")[0] == "determined" else None


def _constants(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.get("type") == "const" and value.keys() == {"type", "val"}:
        return value["val"]
    return {key: _constants(each) for key, each in value.items()}


def _read_experiment(path: str) -> None:
    """Gives this process the variables with which dsat describes an experiment to its ranks."""
    try:
        import yaml
    except ImportError:
        sys.exit("dsat: --config needs PyYAML: pip install pyyaml, or run it by `dsat train`")
    content: Dict[str, Any] = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    os.environ["DSAT_HPARAMS"] = json.dumps(_constants(content.pop("hyperparameters", {})))
    os.environ["DSAT_EXPERIMENT"] = json.dumps(content)


def main() -> None:
    """The command of this module, and those of determined.launch."""
    parser = argparse.ArgumentParser(prog="python3 -m dsat.determined", allow_abbrev=False)
    parser.add_argument("--config", help="an experiment file, for a run by hand")
    parser.add_argument("--trial", metavar="MODULE:CLASS", help="a class of DeepSpeedTrial to train")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="or a script that trains")
    own, rest = parser.parse_known_args()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if own.config:
        _read_experiment(own.config)
    if own.trial:
        sys.argv = [sys.argv[0], *rest, *own.command]
        from determined import _driver  # type: ignore[import-not-found]
        _driver.train(own.trial)
        return
    command = [word for word in own.command if word != "--"][:1] + own.command[1:]
    if command and Path(command[0]).name.startswith("python"):
        command = command[1:]
    if not command or not command[0].endswith(".py"):
        parser.error("expected --trial MODULE:CLASS, or a script that ends with .py")
    sys.argv = command
    sys.path[0] = str(Path(command[0]).resolve().parent)
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    from dsat.determined import main as _main  # So that there is one _Finder.
    _main()
