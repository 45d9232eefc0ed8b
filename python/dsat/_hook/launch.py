"""Ranks start where a trial wants them, whoever starts them.

A script that dsat has started as the only rank finds no variables of a launcher, as by hand, until
it makes a process group. A launcher within the user's command gets what its arguments leave open
from the variables that torchrun reads (searcher/scripts/command_target.cc).
"""
from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from dsat._hook import wrap
from dsat._trial import be_only_rank, trial, world_size


def change_process_group(module: ModuleType) -> None:
    """Wraps what makes the process group."""
    is_torchs = module.__name__.startswith("torch")

    @wrap(module, "init_process_group" if is_torchs else "init_distributed")
    def _init(original: Any, *args: Any, **kwargs: Any) -> Any:
        if trial() is not None and world_size() == 1 and not {"rank", "store"} & kwargs.keys():
            be_only_rank()
        return original(*args, **kwargs)


def change_accelerate(module: ModuleType) -> None:
    """Its own configuration file counts less than the trial."""
    @wrap(module, "_validate_launch_command")
    def _validate(original: Any, args: Any) -> Any:
        given = os.environ
        if "PET_NPROC_PER_NODE" not in given:
            return original(args)
        nodes = int(given["PET_NNODES"])
        ours = {"num_processes": nodes * int(given["PET_NPROC_PER_NODE"]),
                "main_process_port": int(given["PET_MASTER_PORT"])}
        if nodes > 1:
            ours.update(num_machines=nodes, machine_rank=int(given["PET_NODE_RANK"]),
                        main_process_ip=given["PET_MASTER_ADDR"])
        for name, value in ours.items():
            if getattr(args, name) is None:
                setattr(args, name, value)
        return original(args)


def change_deepspeed(module: ModuleType) -> None:
    """Its default port counts less than the trial's."""
    @wrap(module, "parse_args")
    def _parse(original: Any, *args: Any, **kwargs: Any) -> Any:
        parsed = original(*args, **kwargs)
        if parsed.master_port == module.TORCH_DISTRIBUTED_DEFAULT_PORT:
            parsed.master_port = int(os.environ.get("PET_MASTER_PORT") or parsed.master_port)
        return parsed
