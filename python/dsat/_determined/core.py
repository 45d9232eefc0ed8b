"""The Core API: what a script's own training loop asks for and reports."""
from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from dsat._meter import number_of
from dsat._report import log
from dsat._trial import measures, rank, rank_file, trial, world_size, write_json
from dsat.determined import Named, missing_names

from ._experiment import Length, folder, max_length, section


class DistributedContext(Named):
    """The ranks, and the exchange of objects between them."""

    def __init__(self) -> None:
        self._group: Any = None

    @classmethod
    def from_deepspeed(cls, chief_ip: Optional[str] = None) -> "DistributedContext":
        """The ranks that dsat or a launcher has started; `chief_ip` is not needed."""
        return cls()

    from_torch_distributed = from_deepspeed

    @property
    def rank(self) -> int:
        return rank()

    @property
    def size(self) -> int:
        return world_size()

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK") or 0)

    get_rank, get_size, get_local_rank = rank.fget, size.fget, local_rank.fget

    def allgather(self, stuff: Any) -> List[Any]:
        """The objects of all ranks, on each of them."""
        if self.size == 1:
            return [stuff]
        import torch.distributed as dist
        if not dist.is_initialized():
            import deepspeed
            deepspeed.init_distributed(auto_mpi_discovery=False)
        if self._group is None:  # Objects are exchanged on the CPU, whatever the tensors use.
            self._group = dist.new_group(backend="gloo")
        gathered: List[Any] = [None] * self.size
        dist.all_gather_object(gathered, stuff, group=self._group)
        return gathered

    def gather(self, stuff: Any) -> Optional[List[Any]]:
        """The objects of all ranks, on rank 0; None on the others."""
        gathered = self.allgather(stuff)
        return gathered if self.rank == 0 else None

    def broadcast(self, stuff: Any) -> Any:
        """Rank 0's object, on each rank."""
        return self.allgather(stuff if self.rank == 0 else None)[0]


class TrainContext(Named):
    """Takes metrics. Those of searcher.metric are the result of a full run."""

    def report_training_metrics(self, steps_completed: int, metrics: Dict[str, Any]) -> None:
        self._report("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Dict[str, Any]) -> None:
        self._report("validation", steps_completed, metrics)
        name = section("searcher").get("metric")
        if name in metrics:
            keep_result(steps_completed, metrics[name])

    def _report(self, kind: str, steps: int, metrics: Dict[str, Any]) -> None:
        log(metrics)
        if not measures():
            shown = ", ".join(f"{name} {value}" for name, value in metrics.items())
            print(f"dsat: {kind} after {steps} batches: {shown}", flush=True)

    def get_tensorboard_path(self) -> Path:
        path = folder() / "tensorboard"
        path.mkdir(parents=True, exist_ok=True)
        return path


def keep_result(steps: Optional[int], value: Any) -> None:
    """The value of searcher.metric at the last validation, for `dsat train` to show."""
    running, number = trial(), number_of(value)
    if number is None:
        name = section("searcher").get("metric")
        raise ValueError(f"dsat: searcher.metric {name!r} is {value!r}; expected a number")
    if running is not None:
        kept = dict(rank_file(running).get("result") or {})
        kept.update({"value": number} if steps is None else {"value": number, "steps": steps})
        newest = newest_checkpoint()
        if newest is not None:
            kept["checkpoint"] = str(_checkpoints() / newest)
        rank_file(running).add({"result": kept})


class SearcherOperation(Named):
    """The training to do."""

    def __init__(self, of: Length) -> None:
        self.length = of.count

    def report_progress(self, length: float) -> None:
        """dsat itself sees how far a measured trial is."""

    def report_completed(self, searcher_metric: Any) -> None:
        keep_result(None, searcher_metric)


class SearcherContext(Named):
    """Asks for one training of searcher.max_length."""

    def operations(self, searcher_mode: Any = None,
                   auto_ack: bool = True) -> Iterator[SearcherOperation]:
        yield SearcherOperation(max_length())


def _checkpoints() -> Path:
    return folder() / "checkpoints"


def newest_checkpoint() -> Optional[str]:
    """The name of the newest complete checkpoint of this run; None in measured trials."""
    with contextlib.suppress(OSError):
        if not measures():
            return (_checkpoints() / "latest").read_text(encoding="utf-8").strip() or None
    return None


class CheckpointContext(Named):
    """Checkpoints in the folder of this run. Of those that it replaces, the best one is kept."""

    def __init__(self, distributed: DistributedContext) -> None:
        self._distributed = distributed

    @contextlib.contextmanager
    def store_path(self, metadata: Optional[Dict[str, Any]] = None,
                   shard: bool = False) -> Iterator[Tuple[Path, str]]:
        """A folder to write a checkpoint to, and its name. A measured trial removes it again.

        With `shard`, all ranks enter together; otherwise only rank 0 does.
        """
        if measures():
            with tempfile.TemporaryDirectory() as path:
                yield Path(path), "not-kept"
            return
        steps = (metadata or {}).get("steps_completed")
        name = f"batch-{steps:08d}" if isinstance(steps, int) else uuid.uuid4().hex
        path = _checkpoints() / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "metadata.json").unlink(missing_ok=True)  # It is not complete any more.
        yield path, name
        if shard:
            self._distributed.allgather(None)
        if not shard or self._distributed.rank == 0:
            self._complete(path, metadata or {})
        if shard:
            self._distributed.allgather(None)

    def _complete(self, path: Path, metadata: Dict[str, Any]) -> None:
        running = trial()
        result = (rank_file(running).get("result") or {}) if running is not None else {}
        is_of_now = "steps" in result and result["steps"] == metadata.get("steps_completed")
        write_json(path / "metadata.json",
                   {**metadata, **({"searcher_metric": result["value"]} if is_of_now else {})})
        pointer = path.parent / "latest"
        pointer.with_suffix(".tmp").write_text(path.name, encoding="utf-8")
        pointer.with_suffix(".tmp").replace(pointer)
        print(f"dsat: saved the checkpoint {path}", flush=True)
        if running is not None:
            rank_file(running).add({"result": {**result, "checkpoint": str(path)}})
        self._remove_older(path)

    def _remove_older(self, newest: Path) -> None:
        """Removes complete checkpoints of this run, but not the newest and the best one."""
        found = [each.parent for each in newest.parent.glob("*/metadata.json")]
        values = {path: self.get_metadata(path.name).get("searcher_metric") for path in found}
        sign = -1 if section("searcher").get("smaller_is_better") is False else 1
        rated = [path for path in found if values[path] is not None]
        best = min(rated, key=lambda path: sign * values[path], default=newest)
        for path in set(found) - {newest, best}:
            shutil.rmtree(path, ignore_errors=True)

    def _path_of(self, storage_id: Any) -> Path:
        path = _checkpoints() / str(storage_id)
        if not (path / "metadata.json").exists():
            raise FileNotFoundError(f"dsat: {path} is no complete checkpoint of this run")
        return path

    @contextlib.contextmanager
    def restore_path(self, storage_id: Any, *_: Any, **__: Any) -> Iterator[Path]:
        """The folder of a checkpoint. Raises FileNotFoundError if there is none of that name."""
        yield self._path_of(storage_id)

    def get_metadata(self, storage_id: Any) -> Dict[str, Any]:
        text = (self._path_of(storage_id) / "metadata.json").read_text(encoding="utf-8")
        return dict(json.loads(text))


class PreemptContext(Named):
    """Says whether to save a checkpoint and end, because `dsat train` was interrupted."""

    def __init__(self, distributed: DistributedContext) -> None:
        self._distributed = distributed
        self._asked = False
        if not measures():
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, signum: int, frame: Any) -> None:
        self._asked = True

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """The same answer on all ranks, which call it together."""
        return not measures() and any(self._distributed.allgather(self._asked))


class Context(Named):
    """What det.core.init() returns."""

    def __init__(self, distributed: Optional[DistributedContext] = None) -> None:
        self.distributed = distributed or DistributedContext()
        self.train = TrainContext()
        self.searcher = SearcherContext()
        self.checkpoint = CheckpointContext(self.distributed)
        self.preempt = PreemptContext(self.distributed)

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, *error: Any) -> None:
        sys.stdout.flush()


def init(*, distributed: Optional[DistributedContext] = None, **_: Any) -> Context:
    """The context of this rank. Other arguments are for a cluster and have no effect."""
    return Context(distributed)


__all__ = ["CheckpointContext", "Context", "DistributedContext", "PreemptContext",
           "SearcherContext", "SearcherOperation", "TrainContext", "init"]
__getattr__ = missing_names(__name__)
