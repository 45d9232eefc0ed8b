"""Nine steps of a trainer without DeepSpeed; with `fails`, the script then fails.

With `reads=HOW`, it does not say how many samples a step has, and reads the trial's config so.
"""
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import dsat

reads = next((word[6:] for word in sys.argv if word.startswith("reads=")), None)
if reads == "plainly":
    with open(os.path.relpath(os.environ["DSAT_DS_CONFIG"]), encoding="utf-8") as file:
        file.read()
elif reads == "helper":
    dsat.get_ds_config({})
elif reads == "parent":
    child = [sys.executable, __file__, "reads=nothing"]
    open(os.environ["DSAT_DS_CONFIG"], encoding="utf-8").close()
    sys.exit(subprocess.run(child, check=False).returncode)
running = dsat.trial()
if reads == "trial":
    print(running.micro_batch_size)
model = SimpleNamespace(parameters=lambda: [])
for number in range(9):
    time.sleep(0.002)
    dsat.report(loss=float(number), model=model, samples=None if reads else 12)
if "fails" in sys.argv:
    raise RuntimeError("out of memory")
