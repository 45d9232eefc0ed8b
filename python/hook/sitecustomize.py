"""Python runs this file at its start in every process of a trial, because it is on PYTHONPATH.

It does nothing but register a finder, which calls dsat._hook when a library that decides about the
DeepSpeed config is imported, a handler of the process's end, and a watch of the trial's config.
Then it runs the sitecustomize that it hides, if there is one.
"""
import atexit
import gc
import importlib.machinery
import os
import sys

# The modules that functions of dsat._hook change after their import.
_TARGETS = {
    "deepspeed": "engine.change",
    "deepspeed.comm.comm": "launch.change_process_group",
    "deepspeed.launcher.runner": "launch.change_deepspeed",
    "torch.distributed.distributed_c10d": "launch.change_process_group",
    "torch.optim.optimizer": "unseen.change",
    "accelerate.commands.launch": "launch.change_accelerate",
    "accelerate.accelerator": "trainers.change_accelerator",
    "accelerate.state": "engine.change_in_dry_run",
    "accelerate.utils.dataclasses": "trainers.change_accelerate_plugin",
    "accelerate.utils.deepspeed": "trainers.change_accelerate_config",
    "lightning.pytorch.strategies.deepspeed": "trainers.change_lightning",
    "pytorch_lightning.strategies.deepspeed": "trainers.change_lightning",
    "transformers.integrations.deepspeed": "trainers.change_hugging_face",
    "transformers.trainer": "trainers.change_trainer",
    **dict.fromkeys(("safetensors.torch", "transformers.generation.stopping_criteria",
                     "transformers.generation.utils", "transformers.training_args"),
                    "engine.change_in_dry_run"),
}
# Packages whose import, with all that they import, is worth a pause of the garbage collector.
_LARGE = frozenset({"torch", "deepspeed", "transformers", "accelerate", "trl", "datasets",
                    "lightning", "pytorch_lightning"})
# The module that dsat._hook.compiler loads later.
_DEFERRED = "torch._dynamo"
_reported = False


def _report(name, error):
    """Says once per process that the script runs without a part of the hook."""
    global _reported
    if not _reported:
        _reported = True
        print(f"dsat: the hook for {name} failed, the script continues without it: "
              f"{type(error).__name__}: {error}", file=sys.stderr)


def _run_uncollected(loader, module):
    """Imports create little garbage, and its collection takes up to a quarter of their time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        loader.exec_module(module)
    finally:
        if collects:
            gc.freeze()
            gc.unfreeze()  # Now all objects are old, as the collector leaves those that it keeps.
            gc.enable()


class _Loader:
    """Loads a module as its own loader does, and lets dsat._hook change it."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        _run_uncollected(self._loader, module)
        if module.__name__ not in _TARGETS:
            return
        try:
            part, _, function = _TARGETS[module.__name__].partition(".")
            getattr(importlib.import_module(f"dsat._hook.{part}"), function)(module)
        except Exception as error:  # A trial without the hook is better than none.
            _report(module.__name__, error)


def _loader_of(name, loader):
    if name != _DEFERRED:
        return _Loader(loader)
    try:
        from dsat._hook import compiler
        return compiler.loader_of(loader)
    except Exception as error:
        _report(name, error)
        return loader


class _Finder:
    """Finds these modules with the other finders of sys.meta_path."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "determined":
            from dsat import determined
            return determined.find_spec(name, path)
        # Within a pause there is nothing to do for the other modules of a package.
        pauses = gc.isenabled() and name.partition(".")[0] in _LARGE
        if not pauses and name not in _TARGETS and name != _DEFERRED:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _loader_of(name, spec.loader)
                return spec
        return None


def _run_hidden_sitecustomize():
    here = os.path.dirname(os.path.abspath(__file__))
    last = max((at for at, folder in enumerate(sys.path)
                if os.path.abspath(folder or ".") == here), default=-1)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path[last + 1:])
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _watch_config(path):
    """Lets dsat.report() know whether the script, or a Python that has started it, reads `path`."""
    def note(event, args):
        if event != "open" or os.environ.get("DSAT_CONFIG_READ") != "0":
            return
        try:
            opened = os.fsdecode(args[0])
            if not opened.endswith((".py", ".pyc")) and _may_be_same(opened, path):
                os.environ["DSAT_CONFIG_READ"] = "1"
        except (OSError, TypeError, ValueError):  # It is another file, or none.
            pass
    os.environ.setdefault("DSAT_CONFIG_READ", "0")
    sys.addaudithook(note)
    sys.dsat_watches_config = True


def _may_be_same(opened, path):
    try:
        return os.path.samefile(opened, path)
    except FileNotFoundError:  # A path may be relative to an open folder, which is not known here.
        return not os.path.isabs(opened) and os.path.basename(opened) == os.path.basename(path)


def _leave():
    """Ends a process that is measured before Python frees its modules: PyTorch's take a second."""
    trial = sys.modules.get("dsat._trial")
    if trial is None or not trial.has_result():
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # It may be closed, or replaced by the script.
            pass
    os._exit(0)


if os.environ.get("DSAT_DS_CONFIG") and not hasattr(sys, "dsat_watches_config"):
    sys.meta_path.insert(0, _Finder())
    _watch_config(os.environ["DSAT_DS_CONFIG"])
    atexit.register(_leave)  # The first one that is registered is called last.
_run_hidden_sitecustomize()
