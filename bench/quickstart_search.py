#!/usr/bin/env python3
"""Compares the time that `auto` and `asha` take for the search of the quickstart, and their picks.

usage: bench/quickstart_search.py [--build BUILD] [--pairs 4] [--run-steps 20000] [--trials 50]

Each pair is a search by `auto`, without a warm start, and then one by `asha`. The pick of auto is
measured against that of asha in alternating rounds (`dsat check`): a factor above 1 means that
auto's pick is faster. Intervals have a confidence of 95 %.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile
import time

from dsat_trial import BUILD, build_folder, interrupt_on_sigterm

EXPERIMENT = pathlib.Path(__file__).resolve().parent.parent / "examples/quickstart/deepspeed.yaml"


def interval(factor):
    if factor is None:
        return "not known"
    return f"{factor['value']:.2f} ({factor['low']:.2f} to {factor['high']:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=build_folder, default=BUILD)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--run-steps", type=int, default=20000, help="of auto")
    parser.add_argument("--trials", type=int, default=50, help="of asha")
    args = parser.parse_args()
    interrupt_on_sigterm()

    def dsat(out, *words):
        """The results of a command, and its time in seconds."""
        command = [args.build / "dsat", *map(str, words), "--db", out.parent / "bench.db", "--out",
                   out, "--json"]
        started = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout), time.monotonic() - started

    print("| auto: launches, time | factor | asha: launches, time | factor | auto's time / asha's | "
          "auto's pick / asha's |\n|---|---|---|---|--:|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for pair in range(args.pairs):
            cells, times, outs = [], [], []
            for method, options in (
                    ("auto", ["--warm-start", "off", "--run-steps", args.run_steps]),
                    ("asha", ["--max-trials", args.trials])):
                outs.append(pathlib.Path(name) / f"{method}{pair}")
                result, seconds = dsat(outs[-1], method, EXPERIMENT, *options)
                times.append(seconds)
                cells += [f"{len(result['trials'])}, {seconds:.0f} s",
                          interval(result["verdict"]["factor"])]
            check, _ = dsat(pathlib.Path(name) / f"check{pair}", "check",
                            outs[0] / "ds_config.json", "--config", EXPERIMENT, "--against",
                            outs[1] / "ds_config.json", "--tolerance", "99%")
            cells += [f"{times[0] / times[1]:.2f}", interval(check["factor"])]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
