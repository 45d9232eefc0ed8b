"""scripts/gpu_check runs to its end on the emulated GPU; stopped, it leaves what was measured.

usage: gpu_check_test.py BUILD

Programs of these names stand for compute-sanitizer and a Python with torch.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop()).resolve()

# Runs the program that it is given, from the first argument that is one; or fails.
TOOL = """#!{python}
import os, sys
if os.environ.get("FAKE_TOOL_FAILS"):
    sys.exit("fake error")
i = next(i for i, arg in enumerate(sys.argv) if i > 0 and os.access(arg, os.X_OK))
print("instrumented", sys.argv[i], flush=True)
os.execv(sys.argv[i], sys.argv[i:])
"""

# A python3 that imports torch but not DeepSpeed, has cuBLAS in its folder, and trains.
PEER = """#!{python}
import json, os, sys, time
if sys.argv[1] == "-c":
    if "import deepspeed" in sys.argv[2]:
        sys.exit(1)
    print("{site}" if "sys.path" in sys.argv[2] else "torch 0")
    sys.exit()
assert "{site}/nvidia/cu13/lib" in os.environ["LD_LIBRARY_PATH"].split(":")
assert " " not in os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
task = json.load(open(sys.argv[2]))
if os.environ.get("FAKE_PEER_HANGS"):
    time.sleep(600)
print(json.dumps({{"step_ms": [1000.0] * task["ds_config"]["train_micro_batch_size_per_gpu"],
                  "peak_bytes": 1 << 30}}))
"""


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.out = self.folder / "the results"
        site = self.folder / "site"
        (site / "nvidia/cu13/lib").mkdir(parents=True)
        (self.folder / "bin").mkdir()
        for name, text in (("compute-sanitizer", TOOL), ("peer", PEER)):
            program = self.folder / "bin" / name
            program.write_text(text.format(python=sys.executable, site=site))
            program.chmod(0o755)

    def start(self, *arguments, root=ROOT, **environment):
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        command = [sys.executable, root / "scripts/gpu_check", "--rehearse", "--build", BUILD,
                   "--peer-python", self.folder / "bin/peer", *arguments]
        return subprocess.Popen(command, env={**os.environ, "PATH": path, "OUT": str(self.out),
                                              **environment},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end_of(self, process):
        """The exit status and the summary of a rehearsal."""
        output, errors = process.communicate(timeout=200)
        summary = (self.out / "summary.txt").read_text()
        self.assertEqual(output, summary, errors)
        return process.returncode, summary

    def check(self, *arguments, **environment):
        return self.end_of(self.start(*arguments, **environment))

    def peers(self):
        """The command lines of the running processes that train as the peer."""
        commands = []
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                commands.append(file.read_bytes())
            except OSError:
                continue  # It has just ended.
        peer = str(self.folder / "bin/peer").encode()
        return [command for command in commands if peer in command]

    def next_command(self, summary):
        """The words of the command that continues."""
        return shlex.split(re.search("Next: (.*)", summary)[1])

    def results(self):
        lines = (self.out / "training.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def test_every_stage_runs_and_what_it_measured_is_kept(self):
        status, summary = self.check()
        self.assertEqual(status, 0, summary)
        for name in ("doctor", "kernels_test", "device_speed_test", "checkpoint_test", "sanitizer",
                     "train-tiny", "profile", "nccl", "search", "search-check", "offload"):
            self.assertRegex(summary, rf"(?m)^{name} +passed")
        self.assertRegex(summary, r"(?m)^script +skipped: no Python with DeepSpeed")
        self.assertRegex(summary, r"kernels_test +passed .* \d+ tests")
        self.assertRegex(summary, r"(?m)^\| tiny \| 2 \| \d+ \|.*\| 128 \| \d+\.\d\d \|$")
        programs = (self.out / "programs.log").read_text()
        self.assertIn(f"instrumented {BUILD / 'kernels_test'}", programs)
        self.assertEqual({path.name for path in self.out.iterdir()},
                         {"summary.txt", "training.jsonl", "programs.log", "search.db"})
        self.assertRegex(summary, r"(?m)^next: sh ")
        offloaded, dsat, peer = self.results()
        self.assertEqual([dsat["side"], peer["side"], offloaded["offload"]], ["dsat", "peer", True])
        self.assertEqual(peer["tokens_per_second"], 128)
        self.assertGreater(dsat["tokens_per_second"], 0)
        self.assertIn("everything passed", summary)

    def test_failures_are_told_and_a_stop_leaves_what_was_measured(self):
        status, summary = self.check("--from", "sanitizer", "--minutes", "0.35",
                                     FAKE_TOOL_FAILS="1", FAKE_PEER_HANGS="1")
        self.assertEqual(status, 2, summary)
        self.assertRegex(summary, r"(?m)^sanitizer +failed with status 1 (.|\n)*fake error")
        self.assertRegex(summary, r"(?m)^train-tiny +out of time")
        self.assertIn("The time is up. Next: ", summary)
        self.assertEqual(self.next_command(summary), [
            sys.executable, f"{ROOT}/scripts/gpu_check", "--rehearse", "--build", str(BUILD),
            "--peer-python", f"{self.folder}/bin/peer", "--minutes", "0.35", "--from", "train-tiny",
            "--out", str(self.out)])
        self.assertEqual([result["side"] for result in self.results()], ["dsat"])

    def test_a_signal_ends_the_check_and_all_that_it_runs(self):
        process = self.start("--from", "train-tiny", FAKE_PEER_HANGS="1")
        while not (self.out / "training.jsonl").exists():
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        process.terminate()
        status, summary = self.end_of(process)
        self.assertEqual(status, 2, summary)
        self.assertRegex(summary, r"(?m)^train-tiny +stopped")
        self.assertRegex(summary, r"Stopped by a signal\. Next: .* --from train-tiny")
        self.assertEqual([result["side"] for result in self.results()], ["dsat"])
        deadline = time.monotonic() + 10  # A killed process is gone only a moment later.
        while self.peers() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.peers(), [])

    def test_the_last_line_continues_a_stopped_search_and_keeps_what_it_has(self):
        process = self.start("--from", "search")
        while not (self.out / "search.db").exists():
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        status, summary = self.end_of(process)
        self.assertEqual(status, 2, summary)
        done = subprocess.run(self.next_command(summary), capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^search-check +passed")
        self.assertEqual({path.name for path in self.out.glob("*.db")},
                         {"search.db", "search-2.db"})

    def test_what_it_copies_from_a_read_only_installation_can_be_written(self):
        installed = self.folder / "installed"
        for name in ("scripts", "examples/gpt2-124m"):
            shutil.copytree(ROOT / name, installed / name)
        for path in installed.rglob("*"):
            path.chmod(0o555)
        process = self.start("--from", "search", root=installed)
        _, summary = self.end_of(process)
        for path in installed.rglob("*"):
            path.chmod(0o755)
        self.assertRegex(summary, r"(?m)^search +passed")
        work = self.out.with_name(f"{self.out.name}-work")
        for path in (work / "gpt2-124m", *(work / "gpt2-124m").iterdir()):
            self.assertTrue(path.stat().st_mode & stat.S_IWUSR, path)

    def test_options_that_cannot_work_are_refused_in_one_line(self):
        file = self.folder / "bin/peer"
        for option, value, error in (
                ("--from", "speed", " is no stage; expected one of doctor, tests, "),
                ("--minutes", "-5", " is no time; expected a number above 0"),
                ("--build", self.folder, " has no program dsat; expected a finished build's"),
                ("--peer-python", "/no/python", " is no program; expected a Python with torch"),
                ("--out", file, f": {file} cannot be written (File exists); expected another"),
                ("--out", file / "in", f": {file / 'in'} cannot be written (Not a directory);")):
            process = self.start(option, value)
            output, errors = process.communicate(timeout=200)
            self.assertEqual((process.returncode, output), (1, ""))
            self.assertRegex(errors, r"^scripts/gpu_check: .*\n$")
            self.assertIn(f"{option} {value}{error}", errors)


if __name__ == "__main__":
    unittest.main()
