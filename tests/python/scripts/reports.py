"""Nine steps of a trainer without DeepSpeed; with `fails`, the script then fails."""
import sys
import time

import dsat

for number in range(9):
    time.sleep(0.002)
    dsat.report(loss=float(number), samples=12)
if "fails" in sys.argv:
    raise RuntimeError("out of memory")
