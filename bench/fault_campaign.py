#!/usr/bin/env python3
"""Counts what dsat loses, runs twice or leaves behind when faults strike its searches.

usage: bench/fault_campaign.py [--build BUILD] [--experiments 20] [--faults-per-experiment 8]
                               [--seed 1] [--only FAULT ...] [--keep FOLDER]

Each experiment is a search with the built-in engine on the CPU (`dsat grid`, 2 ranks, a tiny
model), which is struck at random moments and continued with `dsat resume` whenever its runner has
ended. The trials of this search do not depend on measured times, so that a search of the same seed
that nothing disturbs says what must be recorded at the end. Faults:

  runner, supervisor, rank   SIGKILL
  frozen_supervisor          SIGSTOP of a supervisor
  terminal                   the terminal closes (SIGHUP, and no more output)
  ctrl_c                     Ctrl-C on the terminal
  disk                       the disk is full for two seconds (as root that of the whole search, a
                             tmpfs of 8 MB; else by RLIMIT_FSIZE for the runner alone)
  clients                    idle connections and garbage on every port that the runner listens on
  network                    the network of one of two hosts is gone for some seconds; needs root,
                             because the hosts are network namespaces

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
import datetime
import fcntl
import json
import os
import pathlib
import pty
import random
import resource
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
EXPERIMENT = """
name: faults
entrypoint: builtin
resources: {slots_per_trial: 2, device_memory: 6MiB}
searcher: {name: single, max_length: {batches: 6}}
hyperparameters:
  deepspeed_config: ds_config.json
  model: {type: gpt2, n_layer: 2, n_embd: 64, n_head: 2, n_positions: 32, vocab_size: 256}
  data: {type: synthetic, seq_len: 32, vocab_size: 256}
max_restarts: 1000
"""
DS_CONFIG = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"},
             "zero_optimization": {"stage": 1}}
TRIALS = 12  # So few that grid does not come to the knobs, which depend on the best so far.
LIMITS = ["--hang-timeout", "5", "--start-timeout", "60"]
END_S = 300  # Above the end of a search without further faults.
CLEAN_S = 15
MARK = "DSAT_FAULT_CAMPAIGN"
MISSED = "missed"  # The process to strike was not there.
ENDS_RUNNER, CONTINUES = "ends the runner", "continues"


def processes(mark):
    """The processes that have inherited `mark` in their environment: pid -> command line."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                found[int(entry.name)] = [word for word in words if word]
    return found


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class Search:
    """One experiment in a folder, with its runner on a terminal of its own."""

    def __init__(self, args, folder, options=()):
        self.dsat = str(pathlib.Path(args.build).resolve() / "dsat")
        self.folder = folder
        self.options = list(options)
        self.mark = uuid.uuid4().hex
        self.runner = None
        self.terminal = None
        self.output = b""
        self.num_clients = 0
        (folder / "deepspeed.yaml").write_text(EXPERIMENT)
        (folder / "ds_config.json").write_text(json.dumps(DS_CONFIG))

    def words(self):
        """The arguments that begin the search, or continue it if it was recorded."""
        if self.query("SELECT id FROM experiments"):
            return ["resume", "1"]
        return ["grid", "deepspeed.yaml", "--max-trials", str(TRIALS),
                "--max-concurrent-trials", "1", "--confirm", "0"]

    def start(self):
        words = [self.dsat, *self.words(), "--out", "out", *LIMITS, *self.options]
        self.terminal, inner = pty.openpty()
        self.runner = subprocess.Popen(
            words, cwd=self.folder, stdin=inner, stdout=inner, stderr=inner, close_fds=True,
            env={**os.environ, MARK: self.mark}, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(inner, termios.TIOCSCTTY, 0))
        os.close(inner)
        threading.Thread(target=self._read, args=(self.terminal,), daemon=True).start()

    def _read(self, terminal):
        with contextlib.suppress(OSError):
            while data := os.read(terminal, 65536):
                self.output = (self.output + data)[-4000:]

    def close_terminal(self):
        terminal, self.terminal = self.terminal, None
        if terminal is not None:
            os.close(terminal)

    def running(self):
        return self.runner is not None and self.runner.poll() is None

    def query(self, sql):
        path = self.folder / "dsat.db"
        if not path.exists() or path.stat().st_size == 0:
            return []
        with contextlib.suppress(sqlite3.Error):
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
                return db.execute(sql).fetchall()
        return []

    def ended(self):
        return self.query("SELECT state FROM experiments WHERE state != 'active'") != []

    def trials(self):
        """The trials that have ended, and what was measured of them."""
        rows = self.query("SELECT t.id, t.kind, t.state, t.assignment, p.micro_batch_size,"
                          " p.measurement FROM trials t LEFT JOIN points p ON p.trial = t.id"
                          " AND p.attempt = (SELECT max(attempt) FROM attempts a"
                          " WHERE a.trial = t.id) WHERE t.state != 'running' ORDER BY t.id")
        return {row[0]: row[1:] for row in rows}

    def sequence(self):
        return [(row[0], row[1], row[2], row[3]) for row in self.trials().values()]

    def num_twice(self):
        twice = self.query("SELECT trial FROM events WHERE kind = 'told' GROUP BY trial"
                           " HAVING count(*) > 1 UNION SELECT trial FROM attempts"
                           " WHERE state = 'succeeded' GROUP BY trial HAVING count(*) > 1")
        return len(twice)

    def num_relaunched(self):
        return self.query("SELECT count(*) FROM attempts WHERE attempt > 0")[0][0]

    def launches(self):
        """When trials were launched, and when the search ended."""
        rows = self.query("SELECT at FROM events WHERE kind IN ('attempt_started',"
                          " 'state_changed') ORDER BY seq")
        return [datetime.datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()
                for (at,) in rows]

    def stray_files(self):
        with contextlib.suppress(sqlite3.Error):  # The last reader removes SQLite's own files.
            with contextlib.closing(sqlite3.connect(self.folder / "dsat.db")) as db:
                db.execute("SELECT count(*) FROM events").fetchall()
        stray = [path.name for path in self.folder.iterdir()
                 if path.name not in ("deepspeed.yaml", "ds_config.json", "dsat.db", "out")]
        return stray + [path.name for path in self.folder.glob("out/**/*") if ".tmp." in path.name]

    def orphans(self):
        """Processes that are left; they are killed."""
        wait_until(lambda: not processes(self.mark), CLEAN_S)
        left = processes(self.mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


# Each fault strikes a search once. It returns what becomes of the runner, or MISSED.


def kill_one(search, rng, word, number):
    named = [pid for pid, words in processes(search.mark).items()
             if word in (pathlib.Path(words[0]).name if words else "", *words[1:2])]
    if not named:
        return MISSED
    try:
        os.kill(rng.choice(named), number)
    except ProcessLookupError:
        return MISSED
    return CONTINUES


def strike_runner(search, rng):
    search.runner.kill()
    return ENDS_RUNNER


def strike_supervisor(search, rng):
    return kill_one(search, rng, "supervise", signal.SIGKILL)


def strike_rank(search, rng):
    return kill_one(search, rng, "dsat-trial", signal.SIGKILL)


def strike_frozen_supervisor(search, rng):
    return kill_one(search, rng, "supervise", signal.SIGSTOP)


def strike_terminal(search, rng):
    if search.terminal is None:
        return MISSED
    search.close_terminal()
    return CONTINUES


def strike_ctrl_c(search, rng):
    if search.terminal is None:
        return MISSED
    os.write(search.terminal, b"\x03")
    return ENDS_RUNNER


def strike_disk(search, rng):
    if not os.path.ismount(search.folder):
        with contextlib.suppress(ProcessLookupError):
            before = resource.prlimit(search.runner.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(search.runner.pid, resource.RLIMIT_FSIZE, (0, before[1]))
            wait_until(lambda: not search.running(), 2)
            resource.prlimit(search.runner.pid, resource.RLIMIT_FSIZE, before)
        return CONTINUES
    filler = search.folder / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 8, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    time.sleep(2)
    filler.unlink()
    return CONTINUES


def listeners(pid):
    """The addresses at which a process listens: (family, address)."""
    links = {}
    with contextlib.suppress(OSError):
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                links[str(fd)] = os.readlink(fd)
    inodes = {link[8:-1] for link in links.values() if link.startswith("socket:[")}
    found = []
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            found.append((socket.AF_INET, ("127.0.0.1", int(words[1].split(":")[1], 16))))
    for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if words[5] == "01" and words[3] == "00010000" and words[6] in inodes and len(words) > 7:
            name = words[7]  # A removed one is reached through the descriptor that holds it.
            held = [fd for fd, link in links.items() if link == name + " (deleted)"]
            found.append((socket.AF_UNIX, "\0" + name[1:] if name.startswith("@")
                          else (held or [name])[0]))
    return found


def strike_clients(search, rng):
    places = listeners(search.runner.pid)
    if not places:
        return MISSED
    clients = []
    for number in range(100):
        family, address = rng.choice(places)
        client = socket.socket(family, socket.SOCK_STREAM)
        client.settimeout(0.2)
        clients.append(client)
        with contextlib.suppress(OSError):
            client.connect(address)
            search.num_clients += 1
            if number % 4 == 1:
                client.sendall(rng.randbytes(2000))
            elif number % 4 == 2:
                client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(500))
            elif number % 4 == 3:
                client.sendall(b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 60000)
    time.sleep(1)
    for client in clients:
        client.close()
    return CONTINUES


FAULTS = {"runner": strike_runner, "supervisor": strike_supervisor, "rank": strike_rank,
          "frozen_supervisor": strike_frozen_supervisor, "terminal": strike_terminal,
          "ctrl_c": strike_ctrl_c, "disk": strike_disk, "clients": strike_clients}
WEIGHTS = {"frozen_supervisor": 0.2}  # Half a minute each.


class Network:
    """Two network namespaces as hosts, which are joined by a bridge to this machine."""

    HOSTS = ("dsatfc1", "dsatfc2")

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        def ip(words):
            subprocess.run(["ip", *words.split()], check=True, stderr=subprocess.DEVNULL)
        ip("link add dsatfc0 type bridge")
        ip("addr add 10.213.7.254/24 dev dsatfc0")
        ip("link set dsatfc0 up")
        for number, host in enumerate(self.HOSTS, 1):
            ip(f"netns add {host}")
            ip(f"link add {host} type veth peer name eth0 netns {host}")
            ip(f"link set {host} master dsatfc0 up")
            ip(f"-n {host} addr add 10.213.7.{number}/24 dev eth0")
            ip(f"-n {host} link set eth0 up")
            ip(f"-n {host} link set lo up")
        script = self.folder / "ssh"
        script.write_text(
            "#!/bin/sh\nhost=$1\nshift\n"
            'SSH_CONNECTION="10.213.7.254 40000 10.213.7.${host#dsatfc} 22"\n'
            "export SSH_CONNECTION\n"
            'exec ip netns exec "$host" /bin/sh -c "cd / && $*"\n')
        script.chmod(0o755)
        hosts = self.folder / "hostfile"
        hosts.write_text("".join(f"{host} slots=1\n" for host in self.HOSTS))
        self.options = ["--hostfile", str(hosts), "--ssh", str(script)]
        return self

    def __exit__(self, *_):
        for host in self.HOSTS:
            subprocess.run(["ip", "netns", "del", host], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["ip", "link", "del", "dsatfc0"], stderr=subprocess.DEVNULL, check=False)

    def strike(self, search, rng):
        host = rng.choice(self.HOSTS)
        subprocess.run(["ip", "link", "set", host, "down"], check=True)
        time.sleep(rng.uniform(1, 15))
        subprocess.run(["ip", "link", "set", host, "up"], check=True)
        return CONTINUES


class Campaign:
    def __init__(self, args):
        self.args = args
        self.expected = None
        self.search = None  # The last one.
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
            search.start()
            search.runner.wait(END_S)
            search.orphans()
            if search.runner.returncode != 0:
                sys.exit("bench/fault_campaign: the search that nothing disturbs fails:\n"
                         + search.output.decode(errors="replace"))
            self.expected = search.sequence()

    def note(self, name, what, count, details):
        if count == 0:
            return
        self.counts[name][what] += count
        print(f"  {name}: {what}: {details}", file=sys.stderr, flush=True)

    def strike(self, search, name, fault, rng):
        before = search.trials()
        struck_at = time.time()
        result = fault(search, rng)
        if result == MISSED:
            return None
        self.counts[name]["faults"] += 1
        if result == ENDS_RUNNER and not wait_until(lambda: not search.running(), 60):
            self.note(name, "hung", 1, "the runner does not end")
            search.runner.kill()
        after = search.trials()
        lost = [trial for trial, row in before.items() if after.get(trial) != row]
        self.note(name, "lost", len(lost), f"trials {lost}")
        return struck_at

    def experiment(self, number, faults, options=()):
        rng = random.Random(f"{self.args.seed}/{number}")
        with self.folder(8) as folder:
            search = self.search = Search(self.args, folder, options)
            search.start()
            struck, last, starts = [], "none", 1
            end = time.monotonic() + END_S
            while True:
                if time.monotonic() > end:
                    self.note(last, "hung", 1, search.output.decode(errors="replace"))
                    search.runner.kill()
                    break
                wait_until(lambda: not search.running(), rng.uniform(0.02, 0.7))
                if search.running():
                    if len(struck) < self.args.faults_per_experiment:
                        name = rng.choices(list(faults), [WEIGHTS.get(f, 1) for f in faults])[0]
                        at = self.strike(search, name, faults[name], rng)
                        if at is not None:
                            last = name
                            struck.append((name, at))
                            end = time.monotonic() + END_S
                    if search.running():
                        continue
                self.note(last, "orphans", len(left := search.orphans()), left)
                if search.ended():
                    break
                if starts > 3 * self.args.faults_per_experiment + 3:
                    self.note(last, "hung", 1, search.output.decode(errors="replace"))
                    break
                starts += 1
                search.close_terminal()
                search.start()
            search.runner.wait()
            search.close_terminal()
            self.judge(search, last, struck)
            if self.args.keep:
                shutil.copytree(folder, pathlib.Path(self.args.keep) / str(number),
                                dirs_exist_ok=True)

    def judge(self, search, last, struck):
        sequence = search.sequence()
        self.note(last, "lost", sum(a != b for a, b in zip(sequence, self.expected))
                  + abs(len(sequence) - len(self.expected)), sequence)
        self.note(last, "twice", search.num_twice(), "see events")
        self.num_clients += search.num_clients
        if all(name == "clients" for name, _ in struck):  # They may not even cost an attempt.
            self.note(last, "twice", search.num_relaunched(), "see attempts")
        stray = search.stray_files()
        self.note(last, "orphans", len(stray), stray)
        launches = search.launches()
        for name, at in struck:
            later = [launch for launch in launches if launch > at]
            if later:
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
    parser.add_argument("--build", default=HERE.parent / "build")
    parser.add_argument("--experiments", type=int, default=20)
    parser.add_argument("--faults-per-experiment", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=[*FAULTS, "network"], metavar="FAULT")
    parser.add_argument("--keep", metavar="FOLDER", help="copy the experiments' folders there")
    args = parser.parse_args()
    faults = {name: fault for name, fault in FAULTS.items() if not args.only or name in args.only}
    campaign = Campaign(args)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):  # The table is then of what was done.
        run(campaign, args, faults)
    if campaign.search is not None and campaign.search.running():
        campaign.search.runner.kill()
        campaign.search.orphans()
    sys.exit(1 if campaign.table() else 0)


def run(campaign, args, faults):
    campaign.undisturbed()
    for number in range(args.experiments if faults else 0):
        campaign.experiment(number, faults)
    if not args.only or "network" in args.only:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            print("network: skipped; it needs root and the command ip", file=sys.stderr)
        else:
            with tempfile.TemporaryDirectory() as name, Network(pathlib.Path(name)) as network:
                for number in range((args.experiments + 4) // 5):
                    campaign.experiment(f"network-{number}", {"network": network.strike},
                                        network.options)


if __name__ == "__main__":
    main()
