#!/usr/bin/env python3
"""Runs the search of the quickstart beside busy processes, and measures its picks without them.

usage: bench/busy_search.py [--build BUILD] [--busy 1,3] [--runs 5] [--run-steps 20000]

A busy process computes without a pause. Each search starts anew. When the busy processes have
ended, its pick is measured against the submitted configuration in four alternating rounds
(`dsat check`). Intervals have a confidence of 95 %.
"""
import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from dsat_trial import BUILD, build_folder, interrupt_on_sigterm
from quickstart_search import EXPERIMENT, interval


@contextlib.contextmanager
def busy_processes(count):
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=build_folder, default=BUILD)
    parser.add_argument("--busy", default="1,3", help="numbers of busy processes")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--run-steps", type=int, default=20000)
    args = parser.parse_args()
    interrupt_on_sigterm()
    print("| busy processes | launches, time | factor | probably faster | measured again |\n"
          "|--:|---|---|--:|---|", flush=True)
    for count in map(int, args.busy.split(",")):
        for _ in range(args.runs):
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)

                def dsat(*words):
                    command = [args.build / "dsat", *map(str, words), "--db", folder / "bench.db",
                               "--json"]
                    # check exits with 1 if the speed is no more what was recorded.
                    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
                    return json.loads(done.stdout)

                started = time.monotonic()
                with busy_processes(count):
                    found = dsat("auto", EXPERIMENT, "--out", folder / "out", "--warm-start", "off",
                                 "--run-steps", args.run_steps)
                seconds = time.monotonic() - started
                check = dsat("check", folder / "out/ds_config.json", "--config", EXPERIMENT,
                             "--confirm", 4, "--out", folder / "check")
            factor = found["factor_over_submitted"]
            print(f"| {count} | {len(found['trials'])}, {seconds:.0f} s | {interval(factor)} | "
                  f"{100 * factor['probability_faster']:.0f} % | {interval(check['factor'])} |",
                  flush=True)


if __name__ == "__main__":
    main()
