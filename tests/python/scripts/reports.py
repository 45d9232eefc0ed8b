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
elif reads == "link":
    os.symlink(os.environ["DSAT_DS_CONFIG"], "link.json")
    open(b"link.json", encoding="utf-8").close()
elif reads == "folder":
    folder, name = os.path.split(os.environ["DSAT_DS_CONFIG"])
    os.chdir("/")
    os.close(os.open(name, os.O_RDONLY, dir_fd=os.open(folder, os.O_RDONLY)))
elif reads == "helper":
    dsat.get_ds_config({})
elif reads in ("parent", "unseen"):
    child = [sys.executable, __file__, "reads=nothing"]
    if reads == "unseen":  # The hook does not run in this child.
        child[1:1] = ["-S", "-c", f"import runpy, sys; sys.path += {sys.path}; "
                      f"sys.argv[:] = {child[1:]}; runpy.run_path({__file__!r})"]
    else:
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
