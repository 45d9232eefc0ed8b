"""Prints the ds_config keys that the config classes of the installed DeepSpeed know.

usage: deepspeed_keys.py VALUES.json, an object from pointer to a list of values

JSON to stdout: {"version": "0.19.8", "keys": {"/zero_optimization/stage": default, ...}, "refused":
{"/zero_optimization/stage 7": message, ...}}. The default is null where it is none, a section, or no
JSON value. A key appears under the name that DeepSpeed's documentation uses: the alias of a field
where it has one. The given values that DeepSpeed's configuration refuses are in `refused`.
"""
import contextlib
import importlib
import json
import sys

with contextlib.redirect_stdout(sys.stderr):
    import deepspeed

# A pointer and the class of the section. A class that a release lacks is left out.
SECTIONS = [
    ("/zero_optimization", "deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
    ("/zero_optimization/offload_param", "deepspeed.runtime.zero.offload_config",
     "DeepSpeedZeroOffloadParamConfig"),
    ("/zero_optimization/offload_optimizer", "deepspeed.runtime.zero.offload_config",
     "DeepSpeedZeroOffloadOptimizerConfig"),
    ("/fp16", "deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
    ("/bf16", "deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    ("/comms_logger", "deepspeed.comm.config", "CommsLoggerConfig"),
    ("/tensorboard", "deepspeed.monitor.config", "TensorBoardConfig"),
    ("/wandb", "deepspeed.monitor.config", "WandbConfig"),
    ("/csv_monitor", "deepspeed.monitor.config", "CSVConfig"),
    ("/comet", "deepspeed.monitor.config", "CometConfig"),
    ("/compile", "deepspeed.compile.config", "CompileConfig"),
    ("/hybrid_engine", "deepspeed.runtime.config", "HybridEngineConfig"),
]


def default_of(field):
    try:
        value = field.get_default(call_default_factory=True)
        json.dumps(value)
    except (TypeError, ValueError):
        return None
    return getattr(value, "value", value)


keys = {}
for pointer, module, name in SECTIONS:
    try:
        section = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        print(f"{module} has no {name}", file=sys.stderr)
        continue
    for field_name, field in getattr(section, "model_fields", {}).items():
        keys[f"{pointer}/{field.alias or field_name}"] = default_of(field)


def refusal_of(pointer, value):
    config = {"train_batch_size": 1, "zero_optimization": {"stage": 3}}
    *sections, name = pointer[1:].split("/")
    at = config
    for section in sections:
        at = at.setdefault(section, {})
    at[name] = value
    try:
        with contextlib.redirect_stdout(sys.stderr):
            deepspeed.DeepSpeedConfig(config)
        return None
    except Exception as error:  # The test shows an error of any kind.
        return str(error)


with open(sys.argv[1]) as file:
    given = json.load(file)
refusals = {f"{pointer} {value}": refusal_of(pointer, value)
            for pointer, values in given.items() for value in values}
refused = {what: why for what, why in refusals.items() if why is not None}
print(json.dumps({"version": deepspeed.__version__, "keys": keys, "refused": refused}))
