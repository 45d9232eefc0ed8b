"""Scripts and programs explain themselves with --help, and do nothing else.

usage: help_test.py BUILD
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop()).resolve()


class HelpTest(unittest.TestCase):
    def test_help_is_shown_and_nothing_is_done(self):
        for name, words in (("bundle", "Makes an archive"), ("fuzz", "Searches for inputs"),
                            ("gpu_check", "Checks dsat"), ("lint", "Runs clang-tidy"),
                            ("picture", "Makes docs/report.png"),
                            ("quickstart", "Installs packages, "),
                            ("setup", "Installs the Debian"), ("test", "Installs packages, "),
                            ("try_docs", "Runs the commands of"), ("try_fresh", "")):
            for option in ("--help", "-h"):
                with self.subTest(name, option=option), tempfile.TemporaryDirectory() as scratch:
                    script = pathlib.Path(scratch, "scripts", name)
                    script.parent.mkdir()
                    # Alone, it can install and build nothing.
                    shutil.copy(ROOT / "scripts" / name, script)
                    done = subprocess.run([f"./{name}", option], capture_output=True, text=True,
                                          cwd=script.parent, check=False)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertIn(words, done.stdout)
                    self.assertNotIn("set -euo", done.stdout)
                    self.assertEqual([path for path in pathlib.Path(scratch).rglob("*")
                                      if path.is_file()], [script])

    def test_programs_show_help_and_do_nothing(self):
        for name in ("dsat-trial", "bench_ask_tell", "bench_collectives", "bench_estimate",
                     "bench_startup", "search_quality"):
            if name != "dsat-trial" and not (BUILD / name).exists():
                continue  # Built without the benchmarks.
            with self.subTest(name):
                done = subprocess.run([BUILD / name, "--help"], capture_output=True, text=True,
                                      check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(f"usage: {name}", done.stdout)


if __name__ == "__main__":
    unittest.main()
