"""A search of dsat in a folder, and the faults that strike it (fault_campaign.py lists them)."""
import contextlib
import datetime
import json
import os
import pathlib
import pty
import resource
import signal
import socket
import sqlite3
import subprocess
import threading
import time
import uuid

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
CLEAN_S = 15
FULL_S = 1  # How long a disk is full.
MARK = "DSAT_FAULT_CAMPAIGN"
MISSED = "missed"  # The process to strike was not there.
ENDS_RUNNER, CONTINUES = "ends the runner", "continues"


class Processes:
    """All processes by the mark that they have inherited in their environment."""

    def __init__(self):
        self.lock = threading.Lock()
        self.read_at = -1.0
        self.found = {}

    def of(self, mark):
        """pid -> command line, not older than this call. Calls that wait share one look."""
        asked_at = time.monotonic()
        with self.lock:
            if self.read_at < asked_at:
                self.read_at = time.monotonic()
                self.found = self._read()
            return self.found.get(mark, {})

    def _read(self):
        found, prefix = {}, f"{MARK}=".encode()
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                for variable in file.read().split(b"\0"):
                    if variable.startswith(prefix):
                        mark = variable[len(prefix):].decode()
                        words = pathlib.Path(f"/proc/{name}/cmdline").read_bytes()
                        found.setdefault(mark, {})[int(name)] = [
                            word for word in words.decode(errors="replace").split("\0") if word]
        return found


PROCESSES = Processes()


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
        self.method = getattr(args, "method", "grid")
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
        if self.method == "auto":  # With rounds of confirmation, and the soak of the pick.
            return ["auto", "deepspeed.yaml", "--max-trials", str(TRIALS), "--confirm", "2",
                    "--max-concurrent-trials", "1"]
        # The wide space leaves out what is predicted to be slow from measured speeds.
        return ["grid", "deepspeed.yaml", "--max-trials", str(TRIALS), "--space", "published",
                "--max-concurrent-trials", "1", "--confirm", "0"]

    def start(self):
        # setsid keeps its process. Python code must not run in a child of several threads.
        words = ["setsid", "--ctty", self.dsat, *self.words(), "--out", "out", *LIMITS,
                 *self.options]
        self.terminal, inner = pty.openpty()
        self.runner = subprocess.Popen(words, cwd=self.folder, stdin=inner, stdout=inner,
                                       stderr=inner, env={**os.environ, MARK: self.mark})
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

    def why_unfinished(self):
        """Why the search has no answer that has been proven; "" if it has."""
        rows = self.query("SELECT e.state, e.reason, e.pick, count(t.id) FROM experiments e"
                          " LEFT JOIN trials t ON t.kind = 'soak' AND t.state != 'running'")
        state, reason, pick, num_soaks = rows[0] if rows else ("absent", "", None, 0)
        answer = all((self.folder / "out" / name).exists() for name in
                     ("ds_config.json", "metrics.json", "command.txt", "report.html"))
        if state == "completed" and pick is not None and num_soaks > 0 and answer:
            return ""
        return f"{state} {reason}, pick {pick}, {num_soaks} soaks, files of the answer: {answer}"

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
        wait_until(lambda: not PROCESSES.of(self.mark), CLEAN_S)
        left = PROCESSES.of(self.mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def end(self):
        if self.runner is not None:
            self.runner.kill()
            self.orphans()


# Each fault strikes a search once. It returns what becomes of the runner, or MISSED.


def kill_one(search, rng, word, number):
    named = [pid for pid, words in PROCESSES.of(search.mark).items()
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
            wait_until(lambda: not search.running(), FULL_S)
            resource.prlimit(search.runner.pid, resource.RLIMIT_FSIZE, before)
        return CONTINUES
    filler = search.folder / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 8, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    time.sleep(FULL_S)
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
    time.sleep(0.5)
    for client in clients:
        client.close()
    return CONTINUES


FAULTS = {"runner": strike_runner, "supervisor": strike_supervisor, "rank": strike_rank,
          "frozen_supervisor": strike_frozen_supervisor, "terminal": strike_terminal,
          "ctrl_c": strike_ctrl_c, "disk": strike_disk, "clients": strike_clients}
WEIGHTS = {"frozen_supervisor": 0.5}  # Half a minute, if no other fault ends it.


class Network:
    """Two network namespaces as hosts, which are joined by a bridge to this machine."""

    HOSTS = ("dsatfc1", "dsatfc2")

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        def ip(words):
            subprocess.run(["ip", *words.split()], check=True, stderr=subprocess.DEVNULL)
        self.remove()  # A killed campaign may have left them.
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
        self.remove()

    def remove(self):
        # The links first: a namespace stays as long as it has open sockets.
        for words in [*(["link", "del", host] for host in self.HOSTS),
                      *(["netns", "del", host] for host in self.HOSTS), ["link", "del", "dsatfc0"]]:
            subprocess.run(["ip", *words], stderr=subprocess.DEVNULL, check=False)

    def strike(self, search, rng):
        host = rng.choice(self.HOSTS)
        subprocess.run(["ip", "link", "set", host, "down"], check=True)
        time.sleep(rng.uniform(1, 15))
        subprocess.run(["ip", "link", "set", host, "up"], check=True)
        return CONTINUES


