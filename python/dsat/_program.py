"""The program dsat that a wheel holds beside this file."""
from __future__ import annotations

import os
import sys
from pathlib import Path


def bundled_program() -> str:
    """The path of the wheel's program; "" if this package is not from such a wheel."""
    path = Path(__file__).with_name("bin") / "dsat"
    return str(path) if path.exists() else ""


def main() -> None:
    """The command `dsat`: becomes the program."""
    program = bundled_program()
    if not program:
        sys.exit("dsat: this installation has the Python package only; install the wheel that "
                 "scripts/bundle --wheel makes")
    os.execv(program, [program, *sys.argv[1:]])
