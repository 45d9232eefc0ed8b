"""The Python interface of dsat, which finds the fastest DeepSpeed configuration.

A script that trains with DeepSpeed needs nothing of this: dsat runs it unchanged. docs/python.md
describes what scripts can do beyond that, and the clients of experiments and their results.
"""
from dsat._client import Experiment, PendingTrial
from dsat._config import (get_ds_config, get_ds_config_from_hparams, get_hf_args_with_overwrites,
                          overwrite_deepspeed_config)
from dsat._export import export
from dsat._program import DsatError
from dsat._report import dsat_reporting_context, log, report
from dsat._results import Results, TrialResult, results, results_frame
from dsat._search import SearchResults, auto, resume
from dsat._trial import Trial, trial

__all__ = [
    "DsatError", "Experiment", "PendingTrial", "Results", "SearchResults", "Trial", "TrialResult",
    "auto", "dsat_reporting_context", "export", "get_ds_config", "get_ds_config_from_hparams",
    "get_hf_args_with_overwrites", "log", "overwrite_deepspeed_config", "report", "results",
    "results_frame", "resume", "trial",
]
