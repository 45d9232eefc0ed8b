"""Counts the bytes of the tensors that a training works with, operator by operator.

The tensors may be real, or fake ones that have only shapes (_fake.py): the counts are the same.
"""
from __future__ import annotations

import weakref
from array import array
from types import ModuleType
from typing import Any, Callable, Dict, List, Set

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from dsat._hook import wrap

# The last kind is in host memory, because it is offloaded, and counts for no device.
KINDS = ("parameters", "gradients", "optimizer", "buffers", "activations", "temporaries", "host")
# The parts of a training, in which peaks are different functions of the micro-batch size.
PHASES = ("start", "engine", "forward", "backward", "update")

# PyTorch's counts of FLOPs lack the CPU's attention and the products of experts' rows.
_FLASH = "_scaled_dot_product_flash_attention"
_COUNTS: Dict[str, Any] = {
    **{f"{_FLASH}_for_cpu{part}": flop_registry.get(getattr(torch.ops.aten, _FLASH + part))
       for part in ("", "_backward")},
    "_grouped_mm": lambda first, second, *_, **__: 2 * first.numel() * second.shape[-1]}
# So many steps are enough where another optimizer steps less often.
_MOST_STEPS = 12
# Its source may be in the memory of the host, or of a collective.
_COPY = torch.ops.aten.copy_.default


def tensors_in(values: Any) -> List[torch.Tensor]:
    """All tensors in lists, dicts and the like, and in tensors that wrap others (FSDP2)."""
    tensors = []
    for value in tree_iter(values):
        if not isinstance(value, torch.Tensor):
            continue
        if hasattr(value, "__tensor_flatten__"):
            tensors += tensors_in([getattr(value, name) for name in value.__tensor_flatten__()[0]])
        else:
            tensors.append(value)
    return tensors


def bytes_of(tensors: List[torch.Tensor]) -> int:
    """The bytes of all these tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class MemoryTracker(TorchDispatchMode):
    """Follows the storages that depend on parameters, from their creation to their release.

    An operator on such a tensor also brings in its other tensors, such as the batch and masks, but
    for the source of a copy. A new storage is an activation if a forward pass made it, and else a
    temporary, until mark() says what it is. Attributes:
        curve: bytes of each of KINDS after each operator, one operator after the other.
        phases: the index in PHASES for each operator.
        flops: of all operators, without recomputed activations.
        work: FLOPs, recomputation included, and bytes read and written, for each operator.
        sent: calls of collectives and bytes that a ring sends in them, for each of PHASES.
        batch_size: the micro-batch size of the first data loader that was iterated to train; 0
            without one.
        other_sizes: what data loaders of a size have instead.
        num_batches: that data loaders have given, but for those of an evaluation.
        num_steps: optimizer steps that have ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.curve = array("q")
        self.phases = bytearray()
        self.flops = 0
        self.work = array("d")
        self.sent = {phase: [0.0, 0.0] for phase in PHASES}
        self.batch_size = 0
        self.other_sizes: Dict[int, int] = {}
        self.num_batches = 0
        self.num_steps = 0
        self.outer_phase = "start"  # Outside of backward passes.
        self.engine: Any = None  # DeepSpeed's, if it trains.
        self.offloads = False  # Whether the optimizer's states are in host memory.
        self.parameters: Dict[int, nn.Parameter] = {}
        self.trained: Set[int] = set()  # The ids of those that have had a gradient.
        self._now = [0] * len(KINDS)
        self._storages: Dict[int, List[Any]] = {}  # By address: weak reference, bytes, kind.
        self._seen: Set[int] = set()
        self._optimizers: Any = weakref.WeakSet()
        self._engines: Any = weakref.WeakSet()  # DeepSpeed's that train.

    @property
    def phase(self) -> str:
        return "backward" if torch._C._current_graph_task_id() >= 0 else self.outer_phase

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor whose storage counts for this one."""
        return tensor

    def mark(self, values: Any, kind: str) -> None:
        """Says what tensors are for, and follows them from now on."""
        for tensor in tensors_in(values):
            self._count(self.own(tensor), KINDS.index(kind), is_sure=True)

    def _kind_of_new(self) -> int:
        is_update = self.outer_phase == "update"
        if self.offloads and is_update:
            return KINDS.index("host")
        if self.phase == "backward" and not torch.is_grad_enabled() or is_update:
            return KINDS.index("temporaries")
        return KINDS.index("activations" if self.outer_phase == "forward" else "temporaries")

    def _count(self, tensor: torch.Tensor, kind: int, is_sure: bool = False) -> None:
        storage = tensor.untyped_storage()
        key, now = storage._cdata, self._now
        entry = self._storages.get(key)
        if entry is None:
            if tensor.device.type == "meta":  # It has a shape, and no memory.
                return
            entries = self._storages

            def release(_: Any) -> None:
                _, size, kind = entries.pop(key)
                now[kind] -= size
            entry = entries[key] = [weakref.ref(storage, release), 0, kind]
        now[entry[2]] -= entry[1]
        if is_sure:
            entry[2] = kind
        entry[1] = storage.nbytes()
        now[entry[2]] += entry[1]

    def _note_size(self, storage: Any, size: int) -> None:
        """FSDP frees a storage by its size."""
        entry = self._storages.get(storage._cdata)
        if entry is not None:
            self._now[entry[2]] += size - entry[1]
            entry[1] = size

    def run(self, func: Any, args: Any, kwargs: Any, tensors: List[torch.Tensor]) -> Any:
        """Runs an operator."""
        return func(*args, **kwargs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # It runs operators on what it wraps.
        kwargs = kwargs or {}
        tensors = tensors_in((args, kwargs))
        result = self.run(func, args, kwargs, tensors)
        if func.namespace == "prim" or not self._follows(tensors):
            return result
        kind = self._kind_of_new()
        for tensor in (*(tensors[:1] if func is _COPY else tensors), *tensors_in(result)):
            self._count(self.own(tensor), kind)
        self._note_work(func, args, kwargs, result, tensors)
        return result

    def _follows(self, tensors: List[torch.Tensor]) -> bool:
        return any(tensor.untyped_storage()._cdata in self._storages for tensor in tensors)

    def _note_work(self, func: Any, args: Any, kwargs: Any, result: Any,
                   tensors: List[torch.Tensor]) -> None:
        count = _COUNTS.get(func._opname, flop_registry.get(func._overloadpacket))
        flops = 0 if count is None else int(count(*args, **kwargs, out_val=result))
        # A backward pass that computes with gradients recomputes.
        if not (self.phase == "backward" and torch.is_grad_enabled()):
            self.flops += flops
        is_sent = func.namespace == "c10d"
        if is_sent:
            self._note_sent("allreduce" in func._opname, tensors)
        is_view = any(argument.alias_info is not None and not argument.alias_info.is_write
                      for argument in func._schema.arguments)
        self.note(flops, [] if is_view or is_sent else [*tensors, *tensors_in(result)])

    def _note_sent(self, is_sum: bool, tensors: List[torch.Tensor]) -> None:
        # The other tensors are a whole and a rank's share of it.
        ranks = dist.get_world_size()
        sent = self.sent[self.phase]
        sent[0] += 1
        sent[1] += bytes_of(tensors) * (ranks - 1) * (2 / ranks if is_sum else 1 / (ranks + 1))

    def note(self, flops: int, moved: List[torch.Tensor]) -> None:
        """Call it after each operator, with the tensors that it reads or writes."""
        self.work.extend((flops, bytes_of(moved)))
        self.curve.extend(self._now)
        self.phases.append(PHASES.index(self.phase))

    def watch(self, ends: Callable[[], None]) -> None:
        """Follows parameters and optimizers from now on; calls `ends` after two steps of each."""
        make = nn.Parameter.__new__

        def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
            parameter = make(cls, data if data is None else self.own(data), requires_grad)
            self.mark(parameter, "parameters")
            return parameter
        nn.Parameter.__new__ = new  # type: ignore[method-assign]
        nn.modules.module.register_module_forward_pre_hook(self._note_module)

        @wrap(optimizers.Optimizer, "__init__")
        def _init(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._optimizers.add(optimizer)
        optimizers.register_optimizer_step_pre_hook(self._begin_update)
        optimizers.register_optimizer_step_post_hook(self._end_update)
        self._ends = ends
        wrap(dataloader.DataLoader, "__iter__")(self._iterate)

        @wrap(torch.UntypedStorage, "resize_")
        def _resize(original: Any, storage: Any, size: int) -> Any:
            self._note_size(storage, size)
            return original(storage, size)

        @wrap(dataloader._BaseDataLoaderIter, "__next__")
        def _next(original: Any, iterator: Any) -> Any:
            self.num_batches += torch.is_grad_enabled()
            return original(iterator)

    def _iterate(self, original: Any, loader: Any) -> Any:
        # A trainer's sampler has that of the script in it, whose batches it shares out.
        sampler = getattr(loader, "batch_sampler", None)
        while sampler is not None:
            size = getattr(sampler, "batch_size", None)
            if isinstance(size, int):
                if torch.is_grad_enabled():  # It is no evaluation.
                    self.batch_size = self.batch_size or size
                sampler.batch_size = self.other_sizes.get(size, size)
            sampler = getattr(sampler, "batch_sampler", None)
        return original(loader)

    def _note_module(self, module: nn.Module, _: Any) -> None:
        if self.outer_phase == "start":
            self.outer_phase = "forward"
        if id(module) in self._seen:
            return
        # A module may use the parameters of another one without calling it, as attention does.
        for part in module.modules():
            self._seen.add(id(part))
            self.mark(part._buffers, "buffers")
        for parameter in module.parameters():
            if id(parameter) not in self.parameters:
                self.parameters[id(parameter)] = parameter
                if parameter.requires_grad and parameter.is_leaf:
                    parameter.register_post_accumulate_grad_hook(self._note_gradient)

    def _note_gradient(self, leaf: torch.Tensor) -> None:
        if not self.trained:  # Earlier batches were looked at, or read ahead.
            self.num_batches = min(self.num_batches, 1)
        self.trained.add(id(leaf))
        self.mark(leaf.grad, "gradients")

    def _begin_update(self, optimizer: Any, *_: Any) -> None:
        self.outer_phase = "update"
        self._mark_states(optimizer)

    def _end_update(self, optimizer: Any, *_: Any) -> None:
        self._mark_states(optimizer)
        if self.engine is None:
            self.outer_phase = "forward"
            self._end_step(optimizer, self._optimizers)

    def _end_step(self, of: Any, others: Any) -> None:
        """Call it after each step of one of the engines or, without them, of the optimizers."""
        of.dsat_steps = getattr(of, "dsat_steps", 0) + 1
        self.num_steps = max(self.num_steps, of.dsat_steps)
        fewest = min(getattr(one, "dsat_steps", 0) for one in {of, *others})
        if self.num_steps >= 2 and (fewest >= 2 or self.num_steps >= _MOST_STEPS):
            self._ends()

    def _mark_states(self, optimizer: Any) -> None:
        kind = "host" if self.offloads else "optimizer"
        self.mark(list(optimizer.state.values()), kind)
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                if not isinstance(tensor, nn.Parameter):  # A copy of higher precision.
                    self.mark(tensor, kind)
                    self.mark(tensor.grad, "host" if self.offloads else "gradients")

    def watch_engines(self, deepspeed: ModuleType) -> None:
        """Follows what DeepSpeed's engines hold, as far as it is not in an optimizer's state."""
        @wrap(deepspeed.DeepSpeedEngine, "__init__")
        def _init(original: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
            before, self.outer_phase = self.outer_phase, "engine"
            original(engine, *args, **kwargs)
            self.outer_phase = before
            if hasattr(engine.optimizer, "step"):
                self.engine = engine
                self._engines.add(engine)
                self.offloads = bool(engine.zero_cpu_offload())
            if engine.optimizer is not None:
                self.mark_engine(engine)

        @wrap(deepspeed.DeepSpeedEngine, "backward")
        def _backward(original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(engine, *args, **kwargs)
            self.mark_engine(engine)
            return result

        @wrap(deepspeed.DeepSpeedEngine, "step")
        def _step(original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
            before, self.outer_phase = engine.global_steps, "update"
            result = original(engine, *args, **kwargs)
            self.outer_phase = "forward"
            self.mark_engine(engine)
            if engine.global_steps > before:
                self._end_step(engine, self._engines)
            return result

    def mark_engine(self, engine: Any) -> None:
        """Call it after the passes and steps of an engine: its buffers come and go."""
        if hasattr(engine.optimizer, "step"):  # At stage 3, that of a reference model has none.
            self._mark_states(getattr(engine.optimizer, "optimizer", engine.optimizer))
        offloads_parameters = bool(engine.zero_offload_param())
        for parameter in engine.module.parameters():
            self.mark(getattr(parameter, "ds_tensor", None),
                      "host" if offloads_parameters else "parameters")
        for name, value in vars(engine.optimizer).items():
            if "grad" in name:
                self.mark(value, "host" if self.offloads and "gpu" not in name else "gradients")
            elif "cpu_offload" in name:
                self.mark(value, "host")
