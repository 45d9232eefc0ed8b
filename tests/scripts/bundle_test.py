"""An archive of scripts/bundle runs where there is nothing but a C library, Python and coreutils.

usage: bundle_test.py BUILD

The programs are those of BUILD, since compiling them for any processor would take too long here.
Skipped (77) with DSAT_QUICK, and where this user may not change its root folder.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop()).resolve()
SKIPPED = 77
COREUTILS = ("cat", "echo", "env", "ls", "mkdir", "rm", "uname")
IN_ROOT = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", """
import os, subprocess, sys
for folder in ("proc", "dev"):
    subprocess.run(["mount", "--rbind", "/" + folder, f"{sys.argv[1]}/{folder}"], check=True)
environment = dict(variable.split("=") for variable in sys.stdin.read().split())
os.chroot(sys.argv[1])
os.chdir("/tmp")
os.execve(sys.argv[2], sys.argv[2:], {"PATH": "/bin", **environment})
"""]
C_LIBRARY = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
             "libresolv.so.2", "libnss_files.so.2", "libnss_dns.so.2")
LOADER = "/lib64/ld-linux-x86-64.so.2"


def libraries_of(path):
    shown = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    return [pathlib.Path(found) for found in re.findall(r"=> (/\S+)", shown)]


class Root:
    """A root folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name in ("proc", "dev", "tmp", "bin"):
            (self.folder / name).mkdir()
        self.copy(LOADER)
        libc = next(path for path in libraries_of(sys.executable) if path.name == "libc.so.6")
        for name in C_LIBRARY:
            if (libc.parent / name).exists():
                self.copy(libc.parent / name)
        self.add_python()
        for name in COREUTILS:
            program = pathlib.Path(shutil.which(name))
            shutil.copy(program, self.folder / "bin" / name)
            self.copy_all(libraries_of(program))

    def copy(self, path):
        target = self.folder / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)

    def copy_all(self, paths):
        for path in paths:
            if not re.match(r"lib(stdc\+\+|gcc_s)\.", path.name):
                self.copy(path)

    def add_python(self):
        """This Python and its library, at their places, and in bin."""
        program = pathlib.Path(sys.executable).resolve()
        standard = pathlib.Path(sysconfig.get_paths()["stdlib"])
        ignored = shutil.ignore_patterns("test", "tests", "__pycache__", "*-packages", "config-*",
                                         "idlelib", "tkinter", "ensurepip", "lib2to3")
        shutil.copytree(standard, self.folder / str(standard).lstrip("/"), ignore=ignored)
        self.copy(program)
        (self.folder / "bin/python3").symlink_to(program)
        self.copy_all(libraries_of(program))
        for module in (standard / "lib-dynload").glob("_ctypes.*.so"):
            self.copy_all(libraries_of(module))

    def run(self, *command, **environment):
        variables = " ".join(f"{name}={value}" for name, value in environment.items())
        done = subprocess.run([*IN_ROOT, self.folder, *command], capture_output=True, text=True,
                              input=variables, check=False)
        return done.returncode, done.stdout + done.stderr


class BundleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.archive = pathlib.Path(scratch.name, "dsat.tar.gz")
        subprocess.run([ROOT / "scripts/bundle", "--build", BUILD, "--out", cls.archive],
                       check=True)
        folder = pathlib.Path(scratch.name, "root")
        folder.mkdir()
        cls.root = Root(folder)
        with tarfile.open(cls.archive) as file:
            file.extractall(folder / "tmp")
        cls.home = f"/tmp/{next((folder / 'tmp').iterdir()).name}"
        # There is no C++ library in this root folder.
        cls.environment = {"LD_LIBRARY_PATH": f"{cls.home}/lib/gcc"}

    def run_in_root(self, *command):
        status, output = self.root.run(*command, **self.environment)
        self.assertEqual(status, 0, output)
        return output

    def test_programs_find_all_libraries_in_the_archive(self):
        for program in sorted((self.root.folder / self.home[1:]).iterdir()):
            if not os.access(program, os.X_OK) or program.is_dir():
                continue
            listed = self.run_in_root(LOADER, "--list", f"{self.home}/{program.name}")
            for name, path in re.findall(r"(\S+) => (\S+)", listed):
                place = "" if name in C_LIBRARY else self.home
                self.assertTrue(path.startswith(f"{place}/"), f"{program.name}: {name} => {path}")

    def test_without_a_cpp_library_the_loader_says_which_one_is_missing(self):
        status, output = self.root.run(f"{self.home}/dsat", "--version")
        self.assertEqual(status, 127)
        self.assertIn("libstdc++.so.6", output)

    def test_dsat_says_what_the_machine_has(self):
        self.assertRegex(self.run_in_root(f"{self.home}/dsat", "--version"), r"\d+\.\d+\.\d+")
        self.assertIn("device     cpu", self.run_in_root(f"{self.home}/dsat", "doctor"))

    def test_a_suite_runs(self):
        output = self.run_in_root(f"{self.home}/kernels_test", "--gtest_filter=*Embedding*")
        self.assertIn("[  PASSED  ] ", output)

    def test_gpu_check_trains_and_searches(self):
        self.environment = {}  # It finds the C++ library by itself.
        output = self.run_in_root("/bin/python3", f"{self.home}/scripts/gpu_check", "--rehearse",
                                  "--from", "nccl")
        for stage in ("train-tiny", "nccl", "search", "offload"):
            self.assertRegex(output, rf"(?m)^{stage} +passed")
        self.assertIn("everything passed", output)


def why_not():
    if os.environ.get("DSAT_QUICK"):
        return "DSAT_QUICK is set"
    if os.geteuid() != 0:
        return "only root may change its root folder"
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "mounts cannot be unshared here"


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    unittest.main()
