"""bench/kernel_times.cc writes CUPTI's records, and scripts/gpu_check makes a table of them.

usage: kernel_times_test.py BUILD

A library of this folder stands for CUPTI.
"""
import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop()).resolve()


def load_gpu_check():
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts/gpu_check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


class KernelTimesTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def run_program(self):
        """A program that the library is loaded into, as CUDA does it."""
        code = f"import ctypes; ctypes.CDLL('{BUILD}/libdsat-kernel-times.so').InitializeInjection()"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              check=True, env={**os.environ, "LD_LIBRARY_PATH": str(self.folder),
                                               "DSAT_KERNEL_TIMES": str(self.folder / "times")})

    def test_each_record_is_a_line(self):
        shutil.copy(BUILD / "libfake-cupti.so", self.folder / "libcupti.so.13")
        self.assertEqual(self.run_program().stderr, "")
        file, = self.folder.glob("times.*")
        self.assertEqual(file.read_text(), "1000\t3000\t7\tdsat::Kern(int)\n"
                         "4000\t4500\t8\tcopy to the host\n4000\t4500\t8\tfill\n")

    def test_without_cupti_the_program_runs_and_says_so(self):
        for version in (12, 13):  # In place of any that this machine has.
            (self.folder / f"libcupti.so.{version}").touch()
        self.assertIn("libcupti.so.12", self.run_program().stderr)

    def test_the_table_is_of_the_last_step(self):
        step = "{0}000000\t{0}200000\t1\tlong\n{0}300000\t{0}400000\t1\tshort\n" \
               "{0}500000\t{0}600000\t1\tshort\n{0}900000\t{0}900000\t2\tcopy to the host\n"
        table = load_gpu_check().kernel_table("".join(map(step.format, (1, 2, 3))))
        self.assertEqual(table.splitlines(), [
            "a step of 0.900 ms, 0.400 ms of it in 4 kernels, copies and fills:",
            "    0.200 ms     1 x    200.0 us  long",
            "    0.200 ms     2 x    100.0 us  short",
            "    0.000 ms     1 x      0.0 us  copy to the host"])


if __name__ == "__main__":
    unittest.main()
