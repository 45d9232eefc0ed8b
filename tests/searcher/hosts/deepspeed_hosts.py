"""Which hosts and slots DeepSpeed's launcher makes of hostfiles and filters.

usage: deepspeed_hosts.py CASES.json RESULTS.json
CASES: [{"hostfile", "include", "exclude", "num_nodes", "num_gpus"}], where 0 means not given.
RESULTS: of each case [[host, [slot, ...]], ...], or null if DeepSpeed refuses it.
"""
import json
import logging
import sys

from deepspeed.launcher import runner

logging.disable(logging.CRITICAL)


def result(case):
    hosts = runner._parse_hostfile(case["hostfile"].splitlines(keepends=True))
    # Not by way of parse_inclusion_exclusion: in older versions it holds an include against itself.
    slots = {name: list(range(count)) for name, count in hosts.items()}
    slots = runner.parse_resource_filter(slots, case["include"], case["exclude"])
    if case["num_nodes"]:
        slots = dict(list(slots.items())[: case["num_nodes"]])
    if case["num_gpus"]:
        slots = {name: list(range(case["num_gpus"])) for name in slots}
    return [[name, indices] for name, indices in slots.items() if indices] or None


def result_or_none(case):
    try:
        return result(case)
    except ValueError:
        return None


cases = json.load(open(sys.argv[1]))
json.dump([result_or_none(case) for case in cases], open(sys.argv[2], "w"))
