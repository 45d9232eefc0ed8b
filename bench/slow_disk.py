#!/usr/bin/env python3
"""Compares searches of short trials on a disk whose writes are slow with the same on a fast one.

usage: bench/slow_disk.py [--build BUILD] [--ms 200] [--trials 12] [--pairs 3] [--syncs]

Both are `dsat random` of the campaign's experiment (faults.py) by the built-in engine on two ranks,
one trial at a time, in alternation. In the slow one every write and every fsync of a file, by every
process of the search, first waits for --ms (slow_writes.cc); with --syncs only every fsync. Prints
the seconds of each search, the factor, and the calls of the slow one by file, per trial.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

from dsat_trial import BUILD, build_folder
from faults import DS_CONFIG, EXPERIMENT


def search(args, ms):
    """Returns the seconds of a search and its slow calls by file."""
    build = pathlib.Path(args.build).resolve()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as counts:
        (pathlib.Path(folder) / "deepspeed.yaml").write_text(EXPERIMENT)
        (pathlib.Path(folder) / "ds_config.json").write_text(json.dumps(DS_CONFIG))
        words = [build / "dsat", "random", "deepspeed.yaml", "--max-trials", str(args.trials),
                 "--space", "published", "--max-concurrent-trials", "1", "--confirm", "0"]
        slow = {"LD_PRELOAD": str(build / "libdsat-slow-writes.so"), "DSAT_SLOW_MS": str(ms),
                "DSAT_SLOW_COUNTS": f"{counts}/calls"}
        if args.syncs:
            slow["DSAT_SLOW_SYNCS"] = "1"
        start = time.monotonic()
        subprocess.run(words, cwd=folder, env={**os.environ, **slow}, check=True,
                       stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - start
        calls = collections.Counter()
        for path in pathlib.Path(counts).iterdir():
            for line in path.read_text().splitlines():
                name = line.replace(folder + "/", "").replace(folder, ".")
                calls[re.sub(r"trials/\d+/|\.tmp\.[\d.]+", lambda m: m[0][:7], name)] += 1
    return seconds, calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=build_folder, default=BUILD)
    parser.add_argument("--ms", type=int, default=200)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--syncs", action="store_true")
    args = parser.parse_args()
    fast, slow, calls = [], [], collections.Counter()
    for _ in range(args.pairs):
        fast.append(search(args, 0)[0])
        seconds, calls = search(args, args.ms)
        slow.append(seconds)
        print(f"{fast[-1]:.1f} s, slow {slow[-1]:.1f} s", flush=True)
    for call, count in calls.most_common():
        print(f"{count / args.trials:8.2f} {call}")
    print(f"| {args.trials} trials | {sum(fast) / len(fast):.1f} s | {args.ms} ms: "
          f"{sum(slow) / len(slow):.1f} s | factor {sum(slow) / sum(fast):.2f} |")


if __name__ == "__main__":
    main()
