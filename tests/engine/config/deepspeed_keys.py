"""Prints the ds_config keys that the config classes of the installed DeepSpeed know.

JSON to stdout: {"version": "0.19.8", "keys": {"/zero_optimization/stage": default, ...}}. The default
is null where it is none, a section, or no JSON value. A key appears under the name that DeepSpeed's
documentation uses: the alias of a field where it has one.
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
print(json.dumps({"version": deepspeed.__version__, "keys": keys}))
