"""Trains a script on fake tensors: parameters, and all that depends on them, have only shapes.

Data stay real, so that a script may look at them. The process group is PyTorch's fake one, and
CUDA's devices are the CPU. Compiled kernels do nothing: they write into tensors that exist.
"""
from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, List, Optional

import numpy
import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # noqa: F401
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from dsat._as_cuda import be_idle, follow_cuda, is_library
from dsat._fake_trainers import CHANGES
from dsat._hook import wrap
from dsat._memory import MemoryTracker, tensors_in
from dsat._trial import be_only_rank

_WAY_OF_UPDATE = "_default_to_fused_or_foreach"
_DEVICE = torch.ops.prim.device.default
_NUMBER = torch.ops.aten._local_scalar_dense.default
# A script that reads a fake tensor's number gets 1; it gets 0 for these types, and where the tensor
# says whether numbers are infinite or NaN.
_FLAGS = (torch.bool, torch.uint8)
_ARE_ZERO = {"isinf", "isnan"}
_STAY_ZERO = {"logical_or", "bitwise_or", "_to_copy", "max", "amax", "any", "sum", "detach"}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
# Tensors that are created with this number of elements are fake at once. Smaller ones may be data.
_MUCH = 1 << 62
_LARGE = {"start": _MUCH, "forward": 1 << 18}
_DATA: Any = torch._C.TensorBase.data
current: Optional["FakeTraining"] = None  # The training of this process.


class FakeTraining(MemoryTracker):
    """Makes the result of an operator fake if one of its tensors is.

    `is_last`: DeepSpeed's gradients and states are those of the last rank, not of the first.
    """

    def __init__(self, is_last: bool = False) -> None:
        super().__init__()
        self._is_last = is_last
        global current
        current = self
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._copies = WeakIdKeyDictionary()
        self._buffers = WeakIdKeyDictionary()  # Fake tensors for the storages of real ones.
        self._overwritten = WeakIdKeyDictionary()  # Storages of real ones with values of fake ones.
        self._workspaces: Dict[str, int] = {}  # Their bytes, by the shapes of an operator.

    def _is_fake(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, FakeTensor) or len(self._overwritten) > 0 and (
            tensor.layout is torch.strided and tensor.untyped_storage() in self._overwritten)

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor for a real one, which exists as long as that does."""
        if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
            return tensor
        if hasattr(tensor, "__tensor_flatten__"):
            names, context = tensor.__tensor_flatten__()
            return type(tensor).__tensor_unflatten__(
                tree_map_only(torch.Tensor, self.own, {
                    name: getattr(tensor, name) for name in names}),
                context, tensor.shape, tensor.stride())
        copy = self._copies.get(tensor)
        if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
            storage = tensor.untyped_storage()
            if storage.nbytes() == tensor.nbytes:
                self._share(storage, tensor.device)  # With its transposes and the like.
            buffer = self._buffers.get(storage)
            with self._mode:
                if buffer is not None:
                    copy = buffer.view(tensor.dtype).as_strided(
                        tensor.shape, tensor.stride(), tensor.storage_offset())
                else:
                    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype,
                                               device=tensor.device)
            self._copies[tensor] = copy
        return copy

    def _share(self, storage: Any, device: torch.device) -> None:
        """Fake tensors for real ones with this storage have a common one."""
        if storage not in self._buffers:
            with self._mode:
                self._buffers[storage] = torch.empty(storage.nbytes(), dtype=torch.uint8,
                                                     device=device)

    def _note_written(self, func: Any, args: Any, kwargs: Any) -> None:
        """A real tensor that is written shares its storage with others, as a bucket's parts do."""
        for at, argument in enumerate(func._schema.arguments):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            # Schemas of collectives do not say what they write.
            if not is_written and func.namespace != "c10d":
                continue
            for tensor in tensors_in(args[at] if at < len(args) else kwargs.get(argument.name)):
                if isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
                    continue
                storage = tensor.untyped_storage()
                if is_written and tensor.is_floating_point() and tensor.numel() > 1:
                    self._overwritten[storage] = True
                if tensor not in self._copies:
                    self._share(storage, tensor.device)

    def _note_size(self, storage: Any, size: int) -> None:
        super()._note_size(storage, size)
        if storage in self._buffers:
            self._buffers[storage].untyped_storage().resize_(size)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):  # Half of all calls.
            return args[0].fake_device
        return super().__torch_dispatch__(func, types, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: Any, tensors: List[Any]) -> Any:
        if not self._follows(tensors):
            if not self._creates_large(args):
                return func(*args, **kwargs)
        elif func is _NUMBER:
            dtype = args[0].dtype
            number = int(dtype not in _FLAGS and not getattr(args[0], "dsat_is_zero", False))
            return float(number) if dtype.is_floating_point else number
        given = args, kwargs
        if not all(isinstance(tensor, FakeTensor) for tensor in tensors):
            self._note_written(func, args, kwargs)
            args, kwargs = tree_map_only(torch.Tensor, self.own, (_with_places(func, args), kwargs))
        name = func._opname
        try:
            with self._mode:
                result = (_multiply_groups if name == "_grouped_mm" else func)(*args, **kwargs)
        except DynamicOutputShapeException:
            if {isinstance(tensor, FakeTensor) for tensor in tensors
                    if not tensor.is_floating_point()} != {False}:
                raise  # Whole numbers and masks that are data decide, such as lengths.
            result = self._run_on_zeros(func, *given)
        if name == "mkldnn_rnn_layer":
            result = (*result[:3], self._workspace_of(func, *given))
        if name in _ARE_ZERO or name in _STAY_ZERO and all(
                getattr(tensor, "dsat_is_zero", False) for tensor in tensors_in(args)):
            for tensor in tensors_in(result):
                tensor.dsat_is_zero = True  # type: ignore[attr-defined]
        return result

    def _run_on_zeros(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result for any values of the fake tensors. Its whole numbers are data."""
        args, kwargs = tree_map_only(
            FakeTensor, lambda tensor: torch.zeros((), dtype=tensor.dtype).expand(tensor.shape),
            (args, kwargs))
        return tree_map_only(
            torch.Tensor, lambda tensor: self.own(tensor) if tensor.is_floating_point() else tensor,
            func(*args, **kwargs))

    def _workspace_of(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """It has the gates of recurrent layers on the CPU; that of fake tensors is empty."""
        key = str([getattr(value, "shape", value) for value in args])
        if key not in self._workspaces:
            self._workspaces[key] = self._run_on_zeros(func, args, kwargs)[3].nbytes
        with self._mode:
            return torch.empty(self._workspaces[key], dtype=torch.uint8)

    def _follows(self, tensors: List[Any]) -> bool:
        return any(map(self._is_fake, tensors))

    def _creates_large(self, args: Any) -> bool:
        size = args[0] if args else None
        return isinstance(size, (list, tuple)) and bool(size) and all(
            isinstance(number, int) for number in size) and (
                torch.Size(size).numel() >= _LARGE.get(self.phase, 0))

    def install(self, ranks: int, on_gpu: bool = False) -> None:
        """Changes PyTorch in this process, which is one of `ranks`.

        `on_gpu`: PyTorch and the script do what they do on GPUs.
        """
        self._on_gpu = on_gpu
        be_idle()
        if on_gpu:
            self._show_gpus(ranks)

        def set_data(tensor: Any, value: Any) -> None:
            value = self.own(value)
            _DATA.__set__(tensor, value)
            tensor.fake_device = getattr(value, "fake_device", value.device)
            if isinstance(tensor, nn.Parameter):
                self.mark(tensor, "parameters")
        fake: Any = FakeTensor
        fake.data = property(_DATA.__get__, set_data)
        fake.data_ptr = lambda tensor: (tensor.untyped_storage()._cdata << 8) + (
            tensor.storage_offset() * tensor.element_size())
        fake.numpy = lambda tensor, **_: torch.ones(tensor.shape, dtype=tensor.dtype).numpy()
        fake.tolist = lambda tensor: numpy.ones(tensor.shape).tolist()
        fake.__float__ = lambda tensor: float(tensor.item())
        fake.__format__ = lambda tensor, how: format(
            tensor.item() if tensor.dim() == 0 else str(tensor), how)
        fake.__deepcopy__ = _deepcopy

        @wrap(fake, "__new__")
        def _new(original: Any, cls: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(first, torch.Tensor):  # The class of a parameter makes another one.
                return nn.Parameter(first, kwargs.get("requires_grad", True))
            return original(cls, first, *args, **kwargs)

        def init_process_group(*args: Any, **kwargs: Any) -> None:
            size = max(ranks, *args[3:4], kwargs.get("world_size", ranks))
            if size == 1:
                be_only_rank()
            start("fake", store=FakeStore(), rank=0, world_size=size)
        start = dist.init_process_group
        dist.init_process_group = init_process_group
        dist.distributed_c10d.init_process_group = init_process_group

        @wrap(nn.Module, "_apply")
        def _apply(original: Any, module: Any, fn: Any, recurse: bool = True) -> Any:
            for part in module.modules() if recurse else [module]:
                for name, buffer in part._buffers.items():
                    part._buffers[name] = buffer if buffer is None else fn(buffer)
                for name, parameter in part._parameters.items():
                    if isinstance(parameter, FakeTensor):
                        with torch.no_grad():
                            parameter.data = fn(parameter.data)
                    elif parameter is not None:  # It becomes fake when it leaves "meta".
                        part._parameters[name] = nn.Parameter(fn(parameter.data),
                                                              parameter.requires_grad)
            return module

        @wrap(dist, "all_gather_object")
        def _all_gather_object(_: Any, objects: List[Any], value: Any, **__: Any) -> None:
            objects[:] = [value] * len(objects)

        torch.distributions.Distribution.set_default_validate_args(False)
        # The script starts its ranks itself, and becomes the first of them.
        wrap(torch.multiprocessing, "spawn")(
            lambda _, function, args=(), *__, **___: function(0, *args))
        wrap(torch, "save")(lambda *_, **__: None)  # A checkpoint without values helps nobody.

        @wrap(torch, "compile")
        def _compile(_: Any, model: Any = None, **__: Any) -> Any:
            return (lambda function: function) if model is None else model

        for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats",
                     "current_device", "memory_allocated", "max_memory_allocated"):
            wrap(torch.cuda, name)(lambda *_, **__: 0)  # For libraries, too.
        wrap(torch, "load")(lambda original, f, map_location=None, *args, **kwargs: original(
            f, "meta" if str(map_location) == "meta" else "cpu", *args, **kwargs))
        for name in list(sys.modules):
            self.change(name)
        for name in ("cuda", "pin_memory"):
            wrap(torch.Tensor, name)(lambda _, tensor, *__, **___: tensor)
        wrap(nn.Module, "cuda")(lambda _, module, *__, **___: module)
        # PyTorch has no device of a number without a GPU.
        wrap(nn.Module, "to")(lambda original, module, *args, **kwargs: original(
            module, *("cpu" if type(value) is int else value for value in args),
            **{name: "cpu" if type(value) is int else value for name, value in kwargs.items()}))

        @wrap(nn.parallel.DistributedDataParallel, "__init__")
        def _init(original: Any, self: Any, module: Any, *_: Any, **kwargs: Any) -> None:
            original(self, module, **{**kwargs, "device_ids": None, "output_device": None})
            self.register_comm_hook(None, noop_hook)  # The fake group's result has no value.
        wrap(FullyShardedDataParallel, "__init__")(lambda original, *args, **kwargs: original(
            *args, **{**kwargs, "device_id": torch.device("cpu")}))

    def _show_gpus(self, ranks: int) -> None:
        """The script finds GPUs, which libraries do not, and PyTorch does what it does on them."""
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.optim.") and hasattr(module, _WAY_OF_UPDATE):
                setattr(module, _WAY_OF_UPDATE, lambda *_, **__: (False, True))

        follow_cuda()

        @wrap(torch.autocast, "__init__")
        def _autocast(original: Any, self: Any, device_type: str, dtype: Any = None,
                      *args: Any, **kwargs: Any) -> None:
            if device_type == "cuda":
                device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
            original(self, device_type, dtype, *args, **kwargs)

        # Without CUDA it is off.
        wrap(torch.amp.GradScaler, "state_dict")(
            lambda original, scaler: original(scaler) or {"scale": scaler.get_scale()})

        def show(name: str, result: Any, module: Any = torch.cuda) -> None:
            @wrap(module, name)
            def _show(original: Any, *args: Any, **kwargs: Any) -> Any:
                return original(*args, **kwargs) if is_library(2) else result
        properties = SimpleNamespace(name="GPU", total_memory=_MUCH, major=9, minor=0,
                                     multi_processor_count=132)
        for name, result in {
                "is_available": True, "device_count": ranks, "is_bf16_supported": True,
                "get_device_name": properties.name, "get_device_properties": properties,
                "get_device_capability": (9, 0), "mem_get_info": (_MUCH, _MUCH)}.items():
            show(name, result)
        for name, result in {"is_available": True, "device_count": ranks,
                             "current_accelerator": torch.device("cuda")}.items():
            if hasattr(torch, "accelerator"):  # PyTorch has it since 2.6.
                show(name, result, torch.accelerator)

    def change(self, name: str) -> None:
        """Changes a module, if it needs that: call it once it is imported."""
        module: Any = sys.modules[name]
        if name == "deepspeed":
            self._change_deepspeed(module)
        elif name in CHANGES:
            CHANGES[name](module, self._on_gpu)

    def _change_deepspeed(self, deepspeed: ModuleType) -> None:
        """DeepSpeed compiles no kernels, and has memory for its flat buffers."""
        self.watch_engines(deepspeed)
        from deepspeed.accelerator import get_accelerator
        from deepspeed.ops.op_builder.builder import OpBuilder
        wrap(OpBuilder, "load")(lambda *_, **__: _NoKernels())
        wrap(importlib.import_module("deepspeed.comm.torch"), "build_shm_op")(lambda *_: None)
        wrap(type(get_accelerator()), "available_memory")(lambda *_, **__: _MUCH)
        if self._on_gpu:  # Not all CPUs compute with fp16.
            wrap(type(get_accelerator()), "is_fp16_supported")(lambda *_: True)

        @wrap(deepspeed.PipelineModule, "__init__")
        def _refuse(*_: Any, **__: Any) -> None:
            raise RuntimeError("a dry run does not follow pipelines, whose ranks differ")

        from deepspeed.runtime.zero import partition_parameters, stage_1_and_2

        @wrap(partition_parameters.Init, "_partition_param")
        def _partition(original: Any, init: Any, param: Any, *args: Any, **kwargs: Any) -> None:
            original(init, param, *args, **kwargs)
            part = param.ds_tensor
            if part is not None and not isinstance(part, FakeTensor):
                param.ds_tensor = self.own(part)  # It becomes a part of a fake buffer.
                param.ds_tensor.__dict__.update(part.__dict__)
        if self._is_last:
            stage_1_and_2.dist = SimpleNamespace(**{
                **vars(deepspeed.comm),
                "get_rank": lambda group=None: deepspeed.comm.get_world_size(group) - 1})


class OnCpu(TorchFunctionMode):
    """Replaces CUDA's devices among arguments by the CPU. All numbers are finite.

    `on_gpu`: attention with dropout uses a fused kernel, which the CPU has only without dropout.
    """

    def __init__(self, on_gpu: bool = False) -> None:
        super().__init__()
        self._on_gpu = on_gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def replaced(value: Any) -> Any:
            is_device = isinstance(value, (str, torch.device))
            if is_device and str(value).startswith("torch.cuda."):  # The name of a type.
                return str(value).replace(".cuda", "")
            return "cpu" if is_device and str(value).split(":")[0] in ("cuda", "cpu") else value
        kwargs = kwargs or {}
        if self._on_gpu and func is nn.functional.scaled_dot_product_attention:
            args = args[:4] + (0.0,) * (len(args) > 4) + args[5:]
            kwargs = {name: value for name, value in kwargs.items() if name != "dropout_p"}
        if func in (torch.isfinite, torch.Tensor.isfinite) and isinstance(args[0], FakeTensor):
            return torch.ones(args[0].shape, dtype=torch.bool)
        kwargs = {name: "cpu" if name == "device" and type(value) is int else replaced(value)
                  for name, value in kwargs.items() if name != "pin_memory"}
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cpu", *args[2:])
        return func(*map(replaced, args), **kwargs)


def _deepcopy(tensor: torch.Tensor, _: Any) -> torch.Tensor:
    """PyTorch's own would copy the mode of fake tensors, too, which holds storages."""
    copy = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)


def _with_places(func: Any, args: Any) -> Any:
    """Masks that are data become the places that they select, which tell how many these are."""
    def places(index: Any) -> Any:
        is_mask = isinstance(index, torch.Tensor) and index.dtype in _FLAGS and index.dim() > 0
        is_data = is_mask and not isinstance(index, FakeTensor)
        return index.nonzero().unbind(1) if is_data else [index]
    if func._opname not in _INDEXED:
        return args
    return (args[0], [place for index in args[1] for place in places(index)], *args[2:])


def _multiply_groups(first: torch.Tensor, second: torch.Tensor, ends: Any = None, _: Any = None,
                     dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """The product of each expert's rows; PyTorch's own for fake tensors refuses 32 bits."""
    shape = [first.shape[-2], second.shape[-1]]
    if first.dim() == second.dim():
        shape.insert(0, len(ends) if first.dim() == 2 else len(first))
    return torch.empty(shape, dtype=dtype or first.dtype, device=first.device)


class _NoKernels:
    def __getattr__(self, name: str) -> Any:
        def update(*args: Any, **kwargs: Any) -> None:
            if current is not None and not current.offloads:
                current.note(0, 2 * tensors_in((args, kwargs)))  # They are read and written.
        return update
