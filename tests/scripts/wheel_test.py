"""A wheel of scripts/bundle installs into an empty virtual environment and works there.

usage: wheel_test.py BUILD

The programs are those of BUILD, since compiling them for any processor would take too long here.
Skipped (77) with DSAT_QUICK, and where Python cannot make a virtual environment with pip.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop()).resolve()
SKIPPED = 77


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        (cls.folder / "wheels").mkdir()
        subprocess.run([ROOT / "scripts/bundle", "--wheel", "--build", BUILD, "--out", "wheels"],
                       check=True, cwd=cls.folder)
        (wheel,) = cls.folder.glob("wheels/*.whl")
        subprocess.run([sys.executable, "-m", "venv", cls.folder / "venv"], check=True)
        subprocess.run([cls.folder / "venv/bin/pip", "install", "--quiet", "--no-index",
                        "--no-deps", wheel], check=True)

    def run_in_venv(self, *command):
        # Neither the sources nor an activated environment may help.
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        done = subprocess.run([self.folder / "venv/bin" / command[0], *command[1:]],
                              capture_output=True, text=True, cwd=self.folder, env=environment,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_a_name_that_pip_refuses_and_a_folder_that_is_missing_are_refused_in_one_line(self):
        (wheel,) = self.folder.glob("wheels/*.whl")
        for name, error in (
                ("x.whl", f"is no name that pip takes; expected a folder, or .* {wheel.name}"),
                (f"no/{wheel.name}", "cannot be written; expected an existing folder")):
            done = subprocess.run([ROOT / "scripts/bundle", "--wheel", "--build", BUILD, "--out",
                                   name], capture_output=True, text=True, cwd=self.folder,
                                  check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rf"^scripts/bundle: --out {name}.*{error}\n$")

    def test_the_command_runs(self):
        for command in (["dsat"], ["python", "-m", "dsat"]):
            self.assertRegex(self.run_in_venv(*command, "--version"),
                             r"^dsat \d+\.\d+\.\d+( \([0-9a-f]{12}\))?$")
        self.assertIn("device     cpu", self.run_in_venv("dsat", "doctor"))

    def test_what_pip_leaves_in_the_source_tree_is_not_in_the_wheel(self):
        (folder,) = self.folder.glob("venv/lib/*/site-packages/dsat/bin/python")
        self.assertEqual({path.name for path in folder.iterdir()},
                         {"dsat", "hook", "pyproject.toml"})

    def test_the_documents_that_messages_name_are_there(self):
        for name in ("README.md", "docs/experiment-file.md"):
            self.assertTrue((self.folder / "venv/share/doc/dsat" / name).exists())
        self.assertTrue((self.folder / "venv/share/man/man1/dsat-auto.1").exists())

    def test_the_package_drives_the_program_of_the_wheel(self):
        (self.folder / "experiment.yaml").write_text("""
entrypoint: builtin
resources: {device_memory: 64MiB}
hyperparameters:
  train_micro_batch_size_per_gpu: 1
  model: {type: gpt2, n_layer: 1, n_embd: 8, n_head: 1, n_positions: 8, vocab_size: 16}
  data: {type: synthetic, seq_len: 8, vocab_size: 16}
""")
        kind = self.run_in_venv("python", "-c", """
import dsat
print(dsat.Experiment.create("random", "experiment.yaml").ask().kind)
""")
        self.assertEqual(kind, "profile\n")

    def test_trials_get_the_import_hook_of_the_wheel(self):
        (self.folder / "script.yaml").write_text("""
entrypoint: python3 -c 'import sys; sys.exit(sys.meta_path[0].find_spec.__code__.co_filename)'
max_restarts: 0
hyperparameters: {train_micro_batch_size_per_gpu: 1}
""")
        subprocess.run([self.folder / "venv/bin/dsat", "random", "script.yaml", "--out", "out",
                        "--profile", "measure"],
                       capture_output=True, cwd=self.folder, check=False)
        log = (self.folder / "out/trials/0/attempt0/rank0.log").read_text()
        self.assertRegex(log, "venv/.*/dsat/bin/python/hook/sitecustomize.py")


def why_not():
    if os.environ.get("DSAT_QUICK"):
        return "DSAT_QUICK is set"
    tried = subprocess.run([sys.executable, "-c", "import venv, ensurepip"], capture_output=True,
                           check=False)
    return "" if tried.returncode == 0 else "this Python makes no virtual environments"


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    unittest.main()
