"""The Python interface of dsat, which finds the fastest DeepSpeed configuration.

A script that trains with DeepSpeed needs nothing of this: dsat runs it unchanged. docs/python.md
describes what scripts can do beyond that, and the clients of experiments and their results.
"""
from dsat._client import DsatError, Experiment, PendingTrial
from dsat._config import (get_ds_config, get_ds_config_from_hparams, get_hf_args_with_overwrites,
                          overwrite_deepspeed_config)
from dsat._report import dsat_reporting_context, log, report
from dsat._results import TrialResult, results, results_frame
from dsat._trial import Trial, trial

__all__ = [
    "DsatError", "Experiment", "PendingTrial", "Trial", "TrialResult", "dsat_reporting_context",
    "get_ds_config", "get_ds_config_from_hparams", "get_hf_args_with_overwrites", "log",
    "overwrite_deepspeed_config", "report", "results", "results_frame", "trial",
]
