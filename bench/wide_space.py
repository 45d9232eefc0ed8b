#!/usr/bin/env python3
"""Compares what `dsat auto` finds in the wide space with an exhaustive grid and with `asha`.

usage: bench/wide_space.py [--build BUILD] [--experiment FILE] [--launches 16] [--rounds 4]
                           [--sizes 8 16 32]

The grid names every value of the structural keys, so that no prediction leaves any out, and tries
each place at micro-batch sizes 1, 2, 4, ... (or --sizes, to save time) and then one knob at a time.
`asha` searches the published space. The picks are measured in alternating rounds (`dsat check`): a
ratio above 1 means that auto's pick is faster.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
STRUCTURAL = """
search_space:
  /pipeline/activation_checkpoint_interval: [0, 1, 2]
  /activation_checkpointing/cpu_checkpointing: [false, true]
  /zero_optimization/offload_optimizer/device: [none, cpu]
  /zero_optimization/offload_param/device: [none, cpu]
"""


class Bench:
    def __init__(self, args, folder):
        self.dsat = str(pathlib.Path(args.build) / "dsat")
        self.experiment = pathlib.Path(args.experiment).resolve()
        self.folder = folder

    def run(self, *words):
        command = [self.dsat, *map(str, words), "--db", self.folder / "bench.db", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def search(self, method, experiment, *options):
        """The folder of the pick."""
        out = self.folder / method
        result = self.run(method, experiment, self.experiment.parent, *options, "--confirm", 0,
                          "--max-concurrent-trials", 1, "--out", out)
        launches = sum(trial["kind"] != "profile" for trial in result["trials"])
        print(f"{method}: {launches} launches, pick {(out / 'ds_config.json').read_text()}",
              flush=True)
        return out

    def ratio(self, pick, other, rounds):
        result = self.run("check", pick / "ds_config.json", "--config", self.experiment,
                          "--against", other / "ds_config.json", "--confirm", rounds,
                          "--tolerance", "99%", "--out", self.folder / f"check-{other.name}")
        return result["factor_over_submitted"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent / "build")
    parser.add_argument("--experiment",
                        default=HERE.parent / "examples/tight-memory/deepspeed.yaml")
    parser.add_argument("--launches", type=int, default=16)
    parser.add_argument("--asha-trials", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", help="micro-batch sizes of the grid")
    parser.add_argument("--grid-trials", type=int, default=400,
                        help="after all places, knobs of the best ones come first")
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(args, pathlib.Path(name))
        named = bench.folder / "exhaustive.yaml"
        sizes = f"  /train_micro_batch_size_per_gpu: {args.sizes}\n" if args.sizes else ""
        named.write_text(bench.experiment.read_text() + STRUCTURAL + sizes)
        auto = bench.search("auto", bench.experiment, "--warm-start", "off",
                            "--max-trials", args.launches + 1)
        asha = bench.search("asha", bench.experiment, "--max-trials", args.asha_trials)
        grid = bench.search("grid", named, "--zero-stages", "0", "1", "2", "3",
                            "--max-trials", args.grid_trials)
        for other in (asha, grid):
            factor = bench.ratio(auto, other, args.rounds)
            print(f"auto / {other.name}: {factor['value']:.3f} "
                  f"({factor['low']:.3f} to {factor['high']:.3f})", flush=True)


if __name__ == "__main__":
    main()
