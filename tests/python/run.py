"""Runs the tests of the Python package with pytest; exit code 77 means that there is no pytest."""
import importlib.util
import pathlib
import sys

if importlib.util.find_spec("pytest") is None:
    print(f"{sys.executable} has no pytest; scripts/setup --tests installs one that has it")
    sys.exit(77)

import pytest  # noqa: E402

folder = pathlib.Path(__file__).resolve().parent
sys.exit(pytest.main(["-q", "-rs", "-p", "no:cacheprovider", "-o", "python_files=*_test.py",
                      f"--rootdir={folder}", str(folder), *sys.argv[1:]]))
