"""Finds the program dsat."""
from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Optional


class DsatError(RuntimeError):
    """dsat refused a command; the text is its message."""


def bundled_program() -> str:
    """The path of the wheel's program; "" if this package is not from such a wheel."""
    path = Path(__file__).with_name("bin") / "dsat"
    return str(path) if path.exists() else ""


def program_path(program: Optional[str]) -> str:
    """The path of `program`, or of the one in DSAT_PROGRAM, or of this wheel's, or of `dsat`."""
    name = program or os.environ.get("DSAT_PROGRAM") or bundled_program() or "dsat"
    path = shutil.which(name)
    if path is None:
        raise DsatError(f"{name}: there is no such program; install dsat, or set DSAT_PROGRAM to "
                        "its path")
    return path


def main() -> None:
    """The command `dsat`: becomes the program."""
    program = bundled_program()
    if not program:
        sys.exit("dsat: this installation has the Python package only; install the wheel that "
                 "scripts/bundle --wheel makes")
    os.execv(program, [program, *sys.argv[1:]])
