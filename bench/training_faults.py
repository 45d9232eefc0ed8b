#!/usr/bin/env python3
"""Compares a training that faults strike with one that nothing disturbs, step by step to the bit.

usage: bench/training_faults.py [--build BUILD] [--steps 20000] [--every 300] [--seed 1]

Both are `dsat train` of a tiny GPT with the built-in engine on the CPU (2 ranks) and a checkpoint
every 100 steps. A random process of the second one (the runner, the supervisor or a rank) receives
SIGKILL each --every steps on average; once the disk is full for a second, and twice there is a
Ctrl-C. The same command continues the training whenever it has ended. The exit code is 1 unless all
numbers of OUT/metrics.jsonl are equal in the end, except for times and memory, and no process is
left.
"""
import argparse
import collections
import contextlib
import json
import pathlib
import random
import sys
import tempfile
import time

import faults
from dsat_trial import BUILD, build_folder, interrupt_on_sigterm
from fault_campaign import Campaign
from faults import Search, wait_until

MEASURED = ("latency_ms", "throughput", "tokens_per_second", "peak_bytes")
LIMIT_S = 120  # Without a new step.


class Training(Search):
    def words(self):
        return ["train", "deepspeed.yaml", "--checkpoint-interval", "100"]

    def __init__(self, args, folder, options):
        super().__init__(args, folder, options)
        self.metrics = folder / "out" / "metrics.jsonl"

    def step(self):
        """The newest step that is recorded whole."""
        with contextlib.suppress(FileNotFoundError), open(self.metrics, "rb") as file:
            file.seek(max(0, self.metrics.stat().st_size - 2000))
            for line in reversed(file.read().splitlines()):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    return json.loads(line)["step"]
        return 0

    def history(self):
        steps = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        return [{key: value for key, value in step.items() if key not in MEASURED}
                for step in steps]

    def train(self, until):
        """Waits until a step is recorded or the training has ended."""
        newest, end = -1, time.monotonic() + LIMIT_S
        while self.running() and (step := self.step()) < until:
            if step > newest:
                newest, end = step, time.monotonic() + LIMIT_S
            if time.monotonic() > end:
                raise TimeoutError(f"no step after {newest} for {LIMIT_S} s\n"
                                   + self.output.decode(errors="replace"))
            time.sleep(0.05)


def strike_any(training, rng):
    return rng.choice([faults.strike_runner, faults.strike_supervisor,
                       faults.strike_rank])(training, rng)


def disturbed(training, args, counts):
    rng = random.Random(args.seed)
    others = [(args.steps // 4, "ctrl_c", faults.strike_ctrl_c),
              (args.steps // 2, "disk", faults.strike_disk),
              (args.steps * 3 // 4, "ctrl_c", faults.strike_ctrl_c)]
    training.start()
    newest, num_vain = 0, 0  # Runs in a row that came no further.
    while True:
        next_strike = training.step() + rng.randint(args.every // 2, args.every * 3 // 2)
        training.train(min(next_strike, args.steps))
        if training.running() and training.step() < args.steps:
            name, strike = "kill", strike_any
            if others and training.step() >= others[0][0]:
                _, name, strike = others.pop(0)
            result = strike(training, rng)
            counts[name] += result != faults.MISSED
            if result == faults.ENDS_RUNNER:
                wait_until(lambda: not training.running(), 60)
        elif training.running():
            training.runner.wait(LIMIT_S)
        if training.running():
            continue
        counts["left"] += len(training.orphans())
        training.close_terminal()
        if training.runner.returncode == 0 and training.step() == args.steps:
            return
        counts["runs"] += 1
        num_vain = 0 if training.step() > newest else num_vain + 1
        newest = max(newest, training.step())
        if num_vain > 20:
            raise TimeoutError(f"20 runs come no further than step {newest}\n"
                               + training.output.decode(errors="replace"))
        training.start()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=build_folder, default=BUILD)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    interrupt_on_sigterm()
    counts = collections.Counter()
    options = ["--steps", str(args.steps)]
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        folder = stack.enter_context(Campaign(args).folder(64))
        reference = Training(args, pathlib.Path(name), options)
        training = Training(args, folder, options)
        stack.callback(reference.end)
        stack.callback(training.end)
        reference.start()
        reference.train(args.steps + 1)
        expected = reference.history()
        if reference.runner.returncode != 0 or len(expected) != args.steps:
            sys.exit("bench/training_faults: the training that nothing disturbs fails:\n"
                     + reference.output.decode(errors="replace"))
        disturbed(training, args, counts)
        found = training.history()
    differing = sum(a != b for a, b in zip(found, expected)) + abs(len(found) - len(expected))
    print("| steps | SIGKILL | Ctrl-C | full disk | restarts by hand | processes left | steps that"
          " differ |\n|--:|--:|--:|--:|--:|--:|--:|")
    print(f"| {args.steps} | {counts['kill']} | {counts['ctrl_c']} | {counts['disk']} |"
          f" {counts['runs']} | {counts['left']} | {differing} |")
    sys.exit(1 if differing or counts["left"] else 0)


if __name__ == "__main__":
    main()
