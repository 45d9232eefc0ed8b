"""The Core API: what a script's own training loop asks for and reports."""
from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import uuid
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from dsat._determined.experiment import Named, folder, max_length, section
from dsat._meter import number_of
from dsat._report import log
from dsat._trial import measures, rank, rank_file, trial, world_size, write_json


class DistributedContext(Named):
    """The ranks, and the exchange of objects between them."""

    rank = property(lambda self: rank())
    size = property(lambda self: world_size())
    local_rank = property(lambda self: int(os.environ.get("LOCAL_RANK") or 0))
    get_rank, get_size, get_local_rank = rank.fget, size.fget, local_rank.fget
    _group: Any = None

    @classmethod
    def from_deepspeed(cls, chief_ip: Optional[str] = None) -> "DistributedContext":
        """The ranks that dsat or a launcher has started; `chief_ip` is not needed."""
        return cls()

    from_torch_distributed = from_deepspeed

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


def _result() -> Dict[str, Any]:
    """What `dsat train` shows: the `value` of searcher.metric, `steps` and `checkpoint`."""
    running = trial()
    return dict(rank_file(running).get("result") or {}) if running is not None else {}


def _keep_result(**values: Any) -> None:
    running = trial()
    if running is not None:
        rank_file(running).add({"result": {**_result(), **values}})


class TrainContext(Named):
    """Takes metrics. Those of searcher.metric are the result of a full run."""

    def report_training_metrics(self, steps_completed: int, metrics: Dict[str, Any]) -> None:
        self._report("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Dict[str, Any]) -> None:
        self._report("validation", steps_completed, metrics)
        value = number_of(metrics.get(section("searcher").get("metric")))
        if value is not None:
            _keep_result(value=value, steps=steps_completed)

    def _report(self, kind: str, steps: int, metrics: Dict[str, Any]) -> None:
        log(metrics)
        if not measures():
            shown = ", ".join(f"{name} {value}" for name, value in metrics.items())
            print(f"dsat: {kind} after {steps} batches: {shown}", flush=True)

    def get_tensorboard_path(self) -> Path:
        path = folder() / "tensorboard"
        path.mkdir(parents=True, exist_ok=True)
        return path


class SearcherOperation(Named):
    """The training to do."""

    def __init__(self) -> None:
        self.length = max_length().count

    def report_progress(self, length: float) -> None:
        """dsat itself sees how far a measured trial is."""

    def report_completed(self, searcher_metric: Any) -> None:
        _keep_result(value=number_of(searcher_metric))


class SearcherContext(Named):
    """Asks for one training of searcher.max_length."""

    def operations(self, *_: Any, **__: Any) -> Iterator[SearcherOperation]:
        yield SearcherOperation()


def newest_checkpoint() -> Optional[str]:
    """The name of the newest complete checkpoint of this run; None in measured trials."""
    found = [] if measures() else (folder() / "checkpoints").glob("*/metadata.json")
    newest = max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
    return newest.parent.name if newest is not None else None


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
        folder_ = folder() / "checkpoints" / name
        folder_.mkdir(parents=True, exist_ok=True)
        (folder_ / "metadata.json").unlink(missing_ok=True)  # It is not complete any more.
        yield folder_, name
        self._distributed.allgather(None) if shard else None
        if not shard or self._distributed.rank == 0:
            self._complete(folder_, metadata or {})
        self._distributed.allgather(None) if shard else None

    def _complete(self, newest: Path, metadata: Dict[str, Any]) -> None:
        result = _result()
        is_rated = "steps" in result and result["steps"] == metadata.get("steps_completed")
        write_json(newest / "metadata.json",
                   {**metadata, "searcher_metric": result["value"] if is_rated else None})
        print(f"dsat: saved the checkpoint {newest}", flush=True)
        values = {path.parent: self.get_metadata(path.parent.name)["searcher_metric"]
                  for path in newest.parent.glob("*/metadata.json")}
        sign = -1 if section("searcher").get("smaller_is_better") is False else 1
        best = min((path for path in values if values[path] is not None), default=newest,
                   key=lambda path: sign * values[path])
        for path in values.keys() - {newest, best}:
            shutil.rmtree(path, ignore_errors=True)
        _keep_result(checkpoint=str(newest))

    @contextlib.contextmanager
    def restore_path(self, storage_id: Any, *_: Any, **__: Any) -> Iterator[Path]:
        """The folder of a checkpoint. Raises FileNotFoundError if there is none of that name."""
        self.get_metadata(storage_id)
        path = folder() / "checkpoints" / str(storage_id)
        _keep_result(checkpoint=str(path))
        yield path

    def get_metadata(self, storage_id: Any) -> Dict[str, Any]:
        path = folder() / "checkpoints" / str(storage_id) / "metadata.json"
        return dict(json.loads(path.read_text(encoding="utf-8")))


class PreemptContext(Named):
    """Says whether to save a checkpoint and end, because `dsat train` was interrupted."""

    def __init__(self, distributed: DistributedContext) -> None:
        self._distributed, self._asked = distributed, False
        if not measures():
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, signum: int, frame: Any) -> None:
        self._asked = True

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """The same answer on all ranks, which call it together."""
        return not measures() and any(self._distributed.allgather(self._asked))


class Context(Named):
    """What init() returns."""

    def __init__(self, distributed: Optional[DistributedContext] = None) -> None:
        self.distributed = distributed or DistributedContext()
        self.train, self.searcher = TrainContext(), SearcherContext()
        self.checkpoint = CheckpointContext(self.distributed)
        self.preempt = PreemptContext(self.distributed)

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, *error: Any) -> None:
        """Nothing is left open."""


def init(*, distributed: Optional[DistributedContext] = None, **_: Any) -> Context:
    """The context of this rank. Other arguments are for a cluster and have no effect."""
    return Context(distributed)
