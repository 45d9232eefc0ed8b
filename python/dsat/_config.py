"""Merges DeepSpeed configs with the overrides of the experiment file and the config of a trial."""
from __future__ import annotations

import copy
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, List, Mapping, Optional, Union

from dsat._trial import Config, at_exit, read_json, trial

_STRATEGY = re.compile("(deepspeed_)?stage_[0-3](_offload|_offload_optimizer|_nvme)?")
ConfigSource = Union[str, "os.PathLike[str]", Mapping[str, Any]]

_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# The keys that trainers have arguments for, and that dsat never tunes.
RECIPE_KEYS = ("optimizer", "scheduler", "gradient_clipping", "fp16", "bf16", "amp")
# Arguments of Hugging Face's trainer, and the key of the config that each must agree with.
_HF_FLAGS = {"per_device_train_batch_size": "train_micro_batch_size_per_gpu",
             "gradient_accumulation_steps": "gradient_accumulation_steps"}


def _load(source: ConfigSource) -> Config:
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    return read_json(source)


def _merge(base: Config, over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = copy.deepcopy(value)


def overwrite_deepspeed_config(base_ds_config: ConfigSource,
                               source_ds_dict: Mapping[str, Any]) -> Config:
    """Returns the base config with the values of `source_ds_dict`, section by section.

    Args:
        base_ds_config: a config, or the path of its JSON file. It is not changed.
        source_ds_dict: the keys to set. Sections are merged, all other values replaced.
    """
    config = _load(base_ds_config)
    _merge(config, source_ds_dict)
    return config


def get_ds_config_from_hparams(hparams: Mapping[str, Any],
                               base_dir: "str | os.PathLike[str]" = ".") -> Config:
    """Returns the DeepSpeed config that a script of an experiment trains with.

    In a trial of dsat that is the trial's config. Elsewhere it is the file that
    `hparams["deepspeed_config"]` names, with the values of `hparams["overwrite_deepspeed_args"]`.

    Args:
        hparams: the `hyperparameters` of the experiment file.
        base_dir: the folder that a relative path starts from.
    """
    running = trial()
    if running is not None:
        return copy.deepcopy(running.config)
    if "deepspeed_config" not in hparams:
        raise KeyError("hyperparameters: deepspeed_config is missing; expected the path of the "
                       "DeepSpeed config")
    name = hparams["deepspeed_config"]
    if not isinstance(name, str):
        raise ValueError(f"hyperparameters: deepspeed_config is {name!r}; expected the path of the "
                         "DeepSpeed config")
    path = Path(base_dir) / name
    if _STRATEGY.fullmatch(name) and not path.exists():
        raise ValueError(f"hyperparameters: deepspeed_config is {name!r}, a strategy that only "
                         "trials of dsat know; expected the path of the DeepSpeed config")
    return overwrite_deepspeed_config(path, hparams.get("overwrite_deepspeed_args") or {})


def get_ds_config(otherwise: ConfigSource) -> Config:
    """Returns the trial's config in a trial of dsat, and `otherwise` (a config or file) elsewhere.

    Use it in a script that builds its config in code and needs the batch size before it calls
    deepspeed.initialize(). Sections that only `otherwise` has stay.
    """
    running = trial()
    given = _load(otherwise)
    return given if running is None else config_of_trial(given, running.config)


def get_hf_args_with_overwrites(args: List[str], hparams: Mapping[str, Any],
                                base_dir: "str | os.PathLike[str]" = ".") -> List[str]:
    """Returns command line arguments of Hugging Face's trainer that agree with the config.

    The trainer refuses a config whose batch sizes differ from its arguments. The arguments for the
    micro-batch size and the accumulation steps get the config's numbers, or are added; "auto" in
    the config leaves an argument as it is. The file of --deepspeed is replaced by the trial's, or
    elsewhere by a temporary one with the values of `hparams["overwrite_deepspeed_args"]`. Without
    these, nothing changes outside of a trial.

    Args:
        args: the arguments without the program's name. They are not changed.
        hparams: the `hyperparameters` of the experiment file.
        base_dir: the folder that a relative path in `hparams` starts from.
    """
    running = trial()
    if running is None and not hparams.get("overwrite_deepspeed_args"):
        return list(args)
    config = get_ds_config_from_hparams(hparams, base_dir)
    result = list(args)
    for flag, key in _HF_FLAGS.items():
        if isinstance(config.get(key), int):
            _set_flag(result, flag, str(config[key]), add=True)
    if _find_flag(result, "deepspeed"):
        path = running.config_path if running is not None else _write_temporary(config)
        _set_flag(result, "deepspeed", str(path), add=False)
    return result


def _write_temporary(config: Config) -> str:
    """Writes a config to a file that exists until this process ends, and returns its path."""
    descriptor, path = tempfile.mkstemp(prefix="ds_config-", suffix=".json")
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
    at_exit(lambda: Path(path).unlink(missing_ok=True))
    return path


def _find_flag(args: List[str], name: str) -> List[int]:
    """The indices of `--name value` and `--name=value`, also with hyphens."""
    return [at for at, argument in enumerate(args)
            if argument.startswith("--")
            and argument[2:].partition("=")[0].replace("-", "_") == name
            and ("=" in argument or at + 1 < len(args))]


def _set_flag(args: List[str], name: str, value: str, add: bool) -> None:
    """Sets each `--name value` and `--name=value`; appends it if there is none and `add`."""
    found = _find_flag(args, name)
    for at in found:
        flag, equals, _ = args[at].partition("=")
        if equals:
            args[at] = f"{flag}={value}"
        else:
            args[at + 1] = value
    if add and not found:
        args += [f"--{name}", value]


def _fill_auto(section: Any, given: Any) -> Any:
    """`section` with the given values where it says "auto"."""
    if section == "auto":
        return given
    if not isinstance(section, dict):
        return copy.deepcopy(section)
    given = given if isinstance(given, dict) else {}
    # Without a given value, DeepSpeed's default holds.
    return {key: _fill_auto(value, given.get(key)) for key, value in section.items()
            if value != "auto" or key in given}


def config_of_trial(given: Config, trial_config: Config, by_trainer: bool = False) -> Config:
    """Returns what a script that built the config `given` has to run in a trial.

    A section of the trial's config replaces the script's; sections that only the script has stay.
    "auto" in the trial's config means the script's value. The three batch sizes belong together: if
    the trial decides about one, those that it does not mention do not count.

    Args:
        given: the script's config; it is not changed.
        trial_config: the trial's.
        by_trainer: `given` is a trainer's, which compares it with its own arguments and objects;
            what it says about RECIPE_KEYS, even nothing, stays.
    """
    result = copy.deepcopy(given)
    if any(isinstance(trial_config.get(key), int) for key in _BATCH_KEYS):
        for key in _BATCH_KEYS:
            if key not in trial_config or key == "train_batch_size":
                result.pop(key, None)
    for key, value in trial_config.items():
        if value != "auto" and not (by_trainer and key in RECIPE_KEYS):
            result[key] = _fill_auto(value, given.get(key))
    return result


def micro_batch_of(config: Mapping[str, Any], world_size: int) -> Optional[int]:
    """The micro-batch size that DeepSpeed would derive from a config; None if it says nothing."""
    micro = config.get("train_micro_batch_size_per_gpu")
    if isinstance(micro, int):
        return micro
    total = config.get("train_batch_size")
    steps = config.get("gradient_accumulation_steps", 1)
    if not (isinstance(total, int) and isinstance(steps, int) and steps > 0):
        return None
    # The ranks that share samples, as in engine/config/batch.h.
    for size in (config.get("sequence_parallel_size"), (config.get("pipeline") or {}).get("stages"),
                 (config.get("tensor_parallel") or {}).get("autotp_size")):
        world_size //= size if isinstance(size, int) and size > 1 else 1
    return total // steps // max(world_size, 1)
