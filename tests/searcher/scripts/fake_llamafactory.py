"""Does as the program of LLaMA-Factory: starts torchrun, whose ranks take arguments from a file."""
import os
import sys

if sys.argv[1] == "train":
    place = [f"--{name.lower()}={os.environ[name]}" for name in (
        "NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT")]
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *place,
                              "hf_trainer.py", *sys.argv[2:]])
