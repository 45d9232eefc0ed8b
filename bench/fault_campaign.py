#!/usr/bin/env python3
"""Counts what dsat loses, runs twice or leaves behind when faults strike its searches.

usage: bench/fault_campaign.py [--build BUILD] [--faults 200] [--jobs 8] [--seed 1]
                               [--method grid|auto] [--only FAULT ...] [--keep FOLDER]

Each experiment is a search with the built-in engine on the CPU (`dsat grid`, 2 ranks, a tiny
model), which is struck at random moments and continued with `dsat resume` whenever its runner has
ended. The trials of this search do not depend on measured times, so that a search of the same seed
that nothing disturbs says what must be recorded at the end. With --method auto it is a search by `auto`
with confirmation and soak, whose trials depend on measured times: it must end with an answer, its
proof and its files instead. --jobs of them run side by side until
--faults have struck; SIGTERM ends the campaign earlier, with the table of what was done. Faults:

  runner, supervisor, rank   SIGKILL
  frozen_supervisor          SIGSTOP of a supervisor
  terminal                   the terminal closes (SIGHUP, and no more output)
  ctrl_c                     Ctrl-C on the terminal
  disk                       the disk is full for a second (as root that of the whole search, a
                             tmpfs of 8 MB; else by RLIMIT_FSIZE for the runner alone)
  clients                    idle connections and garbage on every port that the runner listens on
  network                    the network of one of two hosts is gone for some seconds, in a search
                             beside the others; needs root, because the hosts are network namespaces

lost: trials that were recorded before a fault and are not, or otherwise, after it or at the end.
twice: trials that are recorded as ended twice, or were launched again where only clients struck.
orphans: processes of a search that live 15 s after their runner, and files that nothing needs any
more. hung: searches that do not end. recovery: from the fault to the next launch of a trial that is
recorded, which includes the rest of the running trial if the fault does not end it. The exit code
is 1 if anything was lost, run twice, left or hung.
"""
import argparse
import collections
import contextlib
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from dsat_trial import BUILD, build_folder, interrupt_on_sigterm
from faults import ENDS_RUNNER, FAULTS, MISSED, Network, Search, WEIGHTS, wait_until

END_S = 300  # Above the end of a search without further faults.
MOST_FAULTS = 16  # The most faults of one experiment.


class Campaign:
    def __init__(self, args):
        self.args = args
        self.expected = None
        self.lock = threading.Lock()  # Guards the fields that follow.
        self.stops = threading.Event()
        self.num_begun = 0
        self.num_struck = 0
        self.num_clients = 0
        self.counts = collections.defaultdict(collections.Counter)
        self.recoveries = collections.defaultdict(list)

    @contextlib.contextmanager
    def folder(self, disk_mb):
        """A folder, as root on a disk of this size unless it is 0."""
        with tempfile.TemporaryDirectory(prefix="dsat-faults-") as name:
            path = pathlib.Path(name)
            mounted = disk_mb and os.geteuid() == 0 and subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={disk_mb}m", "tmpfs", name],
                stderr=subprocess.DEVNULL, check=False).returncode == 0
            try:
                yield path
            finally:
                if mounted:
                    subprocess.run(["umount", "-l", name], check=False)

    def undisturbed(self):
        with self.folder(0) as folder:
            search = Search(self.args, folder)
            try:
                search.start()
                search.runner.wait(END_S)
            finally:  # Also after Ctrl-C, which does not reach its session.
                search.end()
            if search.runner.returncode != 0:
                sys.exit("bench/fault_campaign: the search that nothing disturbs fails:\n"
                         + search.output.decode(errors="replace"))
            self.expected = search.sequence()
            if self.args.method == "auto" and (why := search.why_unfinished()):
                sys.exit(f"bench/fault_campaign: the search that nothing disturbs ends: {why}")

    def note(self, name, what, count, details):
        if count == 0:
            return
        with self.lock:
            self.counts[name][what] += count
        print(f"  {name}: {what}: {details}", file=sys.stderr, flush=True)

    def strike(self, search, name, fault, rng):
        before = search.trials()
        struck_at = time.time()
        result = fault(search, rng)
        if result == MISSED:
            return None
        with self.lock:
            self.counts[name]["faults"] += 1
            self.num_struck += 1
        if result == ENDS_RUNNER and not wait_until(lambda: not search.running(), 60):
            self.note(name, "hung", 1, "the runner does not end")
            search.runner.kill()
        after = search.trials()
        lost = [trial for trial, row in before.items() if after.get(trial) != row]
        self.note(name, "lost", len(lost), f"trials {lost}")
        return struck_at

    def strikes_on(self):
        return self.num_struck < self.args.faults and not self.stops.is_set()

    def worker(self, kind, faults, options=()):
        """Runs experiments until all faults have struck."""
        while self.strikes_on():
            with self.lock:
                self.num_begun += 1
                number = self.num_begun
            try:
                self.experiment(f"{kind}{number}", faults, options)
            except Exception:  # An error of the campaign itself must not look clean.
                self.note("none", "hung", 1, traceback.format_exc())

    def experiment(self, name, faults, options):
        rng = random.Random(f"{self.args.seed}/{name}")
        with self.folder(8) as folder:
            search = Search(self.args, folder, options)
            search.start()
            struck = self.disturb(search, faults, rng)
            if struck is not None:
                search.runner.wait()
                search.close_terminal()
                self.judge(search, struck)
            if self.args.keep:
                shutil.copytree(folder, pathlib.Path(self.args.keep) / name, dirs_exist_ok=True)

    def disturb(self, search, faults, rng):
        """Strikes and continues a search to its end: [(fault, time)]; None if the campaign ends."""
        struck, last, starts = [], "none", 1
        end = time.monotonic() + END_S
        while not self.stops.is_set():
            if time.monotonic() > end or starts > 3 * MOST_FAULTS:
                self.note(last, "hung", 1, search.output.decode(errors="replace"))
                break
            wait_until(lambda: not search.running(), rng.uniform(0.02, 0.5))
            if search.running() and len(struck) < MOST_FAULTS and self.strikes_on():
                name = rng.choices(list(faults), [WEIGHTS.get(f, 1) for f in faults])[0]
                if (at := self.strike(search, name, faults[name], rng)) is not None:
                    last = name
                    struck.append((name, at))
                    end = time.monotonic() + END_S
            if search.running():
                continue
            self.note(last, "orphans", len(left := search.orphans()), left)
            if search.ended():
                return struck
            starts += 1
            search.close_terminal()
            search.start()
        search.end()
        return None if self.stops.is_set() else struck

    def judge(self, search, struck):
        last = struck[-1][0] if struck else "none"
        sequence = search.sequence()
        if self.args.method == "auto":
            why = search.why_unfinished()
            self.note(last, "lost", int(why != ""), why)
        else:
            self.note(last, "lost", sum(a != b for a, b in zip(sequence, self.expected))
                      + abs(len(sequence) - len(self.expected)), sequence)
        self.note(last, "twice", search.num_twice(), "see events")
        with self.lock:
            self.num_clients += search.num_clients
        if all(name == "clients" for name, _ in struck):  # They may not even cost an attempt.
            self.note(last, "twice", search.num_relaunched(), "see attempts")
        stray = search.stray_files()
        self.note(last, "orphans", len(stray), stray)
        launches = search.launches()
        for name, at in struck:
            later = [launch for launch in launches if launch > at]
            if later:  # Appending is atomic.
                self.recoveries[name].append(later[0] - at)

    def table(self):
        print("| fault | struck | lost | twice | orphans | hung | recovery: median s | worst s |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        total = collections.Counter()
        for name in (*FAULTS, "network", "none"):
            counts = self.counts[name]
            if not counts:
                continue
            total.update(counts)
            times = self.recoveries[name]
            shown = (f"{statistics.median(times):.1f} | {max(times):.1f}" if times else "- | -")
            print(f"| {name} | {counts['faults']} | {counts['lost']} | {counts['twice']} |"
                  f" {counts['orphans']} | {counts['hung']} | {shown} |")
        print(f"| all | {total['faults']} | {total['lost']} | {total['twice']} |"
              f" {total['orphans']} | {total['hung']} | | |")
        print(f"{self.num_clients} connections of clients")
        return total["lost"] + total["twice"] + total["orphans"] + total["hung"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=build_folder, default=BUILD)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--method", choices=["grid", "auto"], default="grid")
    parser.add_argument("--only", nargs="+", choices=[*FAULTS, "network"], metavar="FAULT")
    parser.add_argument("--keep", metavar="FOLDER", help="copy the experiments' folders there")
    args = parser.parse_args()
    faults = {name: fault for name, fault in FAULTS.items() if not args.only or name in args.only}
    campaign = Campaign(args)
    interrupt_on_sigterm()
    campaign.undisturbed()
    begun_at = time.monotonic()
    with contextlib.ExitStack() as stack:
        threads = [threading.Thread(target=campaign.worker, args=("", faults))
                   for _ in range(args.jobs if faults else 0)]
        if args.faults and (not args.only or "network" in args.only):
            if os.geteuid() != 0 or shutil.which("ip") is None:
                print("network: skipped; it needs root and the command ip", file=sys.stderr)
            else:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                network = stack.enter_context(Network(pathlib.Path(folder)))
                threads.append(threading.Thread(target=campaign.worker, args=(
                    "network-", {"network": network.strike}, network.options)))
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:  # The table is then of what was done.
            campaign.stops.set()
            for thread in threads:
                thread.join()
    num_bad = campaign.table()
    print(f"{time.monotonic() - begun_at:.0f} s")
    sys.exit(1 if num_bad else 0)


if __name__ == "__main__":
    main()
