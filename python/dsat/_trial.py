"""The trial of dsat that this process is a rank of: its files and what they say."""
from __future__ import annotations

import atexit
import functools
import json
import os
import re
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence

Config = Dict[str, Any]
# "1" once this Python, or one that has started it, has read the trial's config, and "0" until then.
# hook/sitecustomize.py watches the file, and sets sys.dsat_watches_config.
_READ = "DSAT_CONFIG_READ"


_STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|(?:#|//)[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)


def read_json(path: "str | os.PathLike[str]") -> Config:
    """Returns the object in a JSON file, which may have comments and trailing commas, as for dsat.

    Raises ValueError with the file's name if it is none.
    """
    text = Path(path).read_text(encoding="utf-8-sig")
    for pattern in (_STRING_OR_COMMENT, _STRING_OR_LAST_COMMA):
        text = pattern.sub(lambda match: match[1] or "", text)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: is a {type(value).__name__}; expected a JSON object")
    return value


def write_json(path: "str | os.PathLike[str]", value: Config) -> None:
    """Writes a file that other processes see complete or not at all."""
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(path)


def at_exit(function: Callable[[], None]) -> None:
    """Calls the function when this process ends, but not when one ends that it has forked."""
    owner = os.getpid()
    atexit.register(lambda: function() if os.getpid() == owner else None)


def hparams() -> Config:
    """The hyperparameters of the experiment file, with the DeepSpeed config of the trial."""
    return dict(json.loads(os.environ.get("DSAT_HPARAMS") or "{}"))


@dataclass(frozen=True)
class Trial:
    """One trial, as its environment and its config file describe it."""

    id: int
    config_path: Path
    dir: Path  # The folder of this launch: its logs, and the files that ranks write for dsat.
    _content: Config = field(repr=False, compare=False)

    @property
    def config(self) -> Config:
        """The content of the config file. Who asks for it is taken to train with it."""
        if _READ in os.environ:
            os.environ[_READ] = "1"
        return self._content

    @property
    def hparams(self) -> Config:
        """The hyperparameters of the experiment file, with this config in its DeepSpeed keys."""
        return hparams()

    @property
    def measures(self) -> bool:
        """False in a full run, which trains to its end."""
        return bool(os.environ.get("DSAT_MEASURE"))

    @property
    def submitted_accumulation(self) -> int:
        """The accumulation steps of the submitted config; 1 if it gives none."""
        return int(os.environ.get("DSAT_SUBMITTED_ACCUMULATION") or 1)

    @property
    def is_profile(self) -> bool:
        """True in the trial that measures the model and no time."""
        return os.environ.get("DSAT_MEASURE") == "profile"

    @property
    def is_dry_run(self) -> bool:
        """True on fake tensors (_dry_run.py), where another part of dsat counts the steps."""
        return os.environ.get("DSAT_MEASURE") == "memory"

    @property
    def start_profile_step(self) -> int:
        """The steps after this one are measured. The first step is 0."""
        return int(os.environ.get("DSAT_START_PROFILE_STEP") or 3)

    @property
    def end_profile_step(self) -> int:
        """The last step that is measured at least."""
        return int(os.environ.get("DSAT_END_PROFILE_STEP") or 5)

    @property
    def sufficient_step(self) -> int:
        """The step after which a script may end by itself, and is measured all the same."""
        return int(os.environ.get("DSAT_SUFFICIENT_STEP") or self.end_profile_step)

    @property
    def has_fixed_steps(self) -> bool:
        """Whether exactly these steps are measured; else more of them if they vary much."""
        return os.environ.get("DSAT_FIXED_STEPS") == "1"

    def batch(self, key: str) -> Optional[int]:
        """One of the three batch sizes; None if the config leaves it to the trainer."""
        value = self.config.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def micro_batch_size(self) -> Optional[int]:
        """Samples per rank and forward pass; None if the trainer decides."""
        return self.batch("train_micro_batch_size_per_gpu")

    @property
    def accumulation_steps(self) -> Optional[int]:
        """Micro-batches per optimizer step; None if the trainer decides."""
        return self.batch("gradient_accumulation_steps")


_current: Optional[Trial] = None
_has_result = False


def note_result() -> None:
    """This rank has measured and written everything. hook/sitecustomize.py then ends it faster."""
    global _has_result
    _has_result = True


def has_result() -> bool:
    """True once this rank has measured and written all that dsat wants from it."""
    return _has_result


def trial() -> Optional[Trial]:
    """The trial that this process belongs to; None outside of dsat.

    Raises ValueError or OSError if the trial's config cannot be read.
    """
    global _current
    path = os.environ.get("DSAT_DS_CONFIG")
    if not path:
        return None
    if _current is None or str(_current.config_path) != path:
        # Reading by dsat does not count as reading by the script.
        before = os.environ.pop(_READ, None)
        content = {} if path == os.devnull else read_json(path)
        if before is not None:
            os.environ[_READ] = before
        _current = Trial(id=int(os.environ.get("DSAT_TRIAL_ID") or 0),
                         config_path=Path(path),
                         dir=Path(os.environ.get("DSAT_TRIAL_DIR") or Path(path).parent),
                         _content=content)
    return _current


def has_read_config() -> bool:
    """False if the script is known not to have read the trial's config.

    A Python in which hook/sitecustomize.py does not run may have the variable of one that started
    it, and nobody sees what it reads.
    """
    return os.environ.get(_READ) != "0" or not hasattr(sys, "dsat_watches_config")


def measures() -> bool:
    """Whether this process belongs to a trial that is measured, not to a full run."""
    running = trial()
    return running is not None and running.measures


def _of_ranks(name: str, variables: Sequence[str]) -> Optional[int]:
    """A function of torch.distributed, or the first of the variables that is a number.

    If dsat starts the ranks, the variables of a cluster's job say nothing about them.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(getattr(distributed, name)())
    for variable in variables[:1] if "DSAT_RANK" in os.environ else variables:
        if os.environ.get(variable, "").isdigit():
            return int(os.environ[variable])
    return None


def rank() -> int:
    """This process's rank, of torch.distributed or of the environment; 0 if there is neither."""
    return _of_ranks(
        "get_rank", ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")) or 0


def world_size() -> int:
    """The number of ranks, of torch.distributed or of the environment; 1 if there is neither."""
    return _of_ranks(
        "get_world_size", ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")) or 1


def sure_world_size() -> Optional[int]:
    """The number of ranks; None if only variables give it that may be of a cluster's job."""
    return _of_ranks("get_world_size", ("WORLD_SIZE",)) or (1 if world_size() == 1 else None)


def be_only_rank() -> None:
    """Gives this process the variables of a launcher's only rank, if it has none."""
    if "RANK" in os.environ:
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1",
                      MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=os.environ.get("DSAT_MASTER_PORT") or str(port))


def check_rank() -> None:
    """Raises RuntimeError if the command starts ranks within each rank that dsat starts."""
    started_as = os.environ.get("DSAT_RANK")
    if started_as is not None and started_as != str(rank()):
        raise RuntimeError(
            "dsat: the command starts ranks itself, of which dsat started one (this is rank "
            f"{rank()} of {world_size()}, within rank {started_as}): begin it with the launcher, "
            f"such as torchrun --nproc_per_node {world_size()} in place of python")


def note_change() -> None:
    """Tells dsat that a size which the script decides about was changed to the trial's."""
    running = trial()
    if running is not None:
        rank_file(running).keep({"changed_script": True})


class RankFile:
    """hook-rank<R>.json in the trial's folder: everything that this rank tells dsat."""

    def __init__(self, of: Trial) -> None:
        self._trial = of
        self._content: Config = {}
        at_exit(self.write)

    def add(self, values: Config) -> None:
        """Adds or replaces keys, and writes the file."""
        self._content.update(values)
        self.write()

    def begin(self, values: Config) -> None:
        """Says that this rank trains with the trial's config. Raises as check_rank()."""
        check_rank()
        ranks = sure_world_size()
        sure = {} if ranks is None else {"world_size": ranks}
        self.add({"config_applied": True, **sure, **values})

    def keep(self, values: Config) -> None:
        """Adds or replaces keys, which are written with the next ones or at the process's end."""
        self._content.update(values)

    def write(self) -> None:
        if not self._content or not os.environ.get("DSAT_TRIAL_DIR"):
            return  # A training with the answer, which only has DSAT_DS_CONFIG, reports nothing.
        path = self._trial.dir / f"hook-rank{rank()}.json"
        try:
            write_json(path, self._content)
        except OSError as error:
            print(f"dsat: {path}: {error}", file=sys.stderr)

    def get(self, key: str) -> Any:
        return self._content.get(key)


rank_file = functools.cache(RankFile)  # The only file of this rank in a trial.
