#!/usr/bin/env python3
"""Compares what `dsat auto` finds in the wide space with an exhaustive grid and with `asha`.

usage: bench/wide_space.py [--build BUILD] [--experiment FILE] [--launches 16] [--rounds 6]
                           [--sizes 8 16 32] [--stages 2 3] [--grid-best 2]

The grid names every value of the structural keys, so that no prediction leaves any out, and tries
each place at micro-batch sizes 1, 2, 4, ... (or --sizes, to save time) and then one knob at a time.
`asha` searches the published space. All of them keep the global batch of the experiment.

The pick of auto is then measured against each other one in alternating rounds (`dsat check`), and
at last against itself, which shows the noise. A factor above 1 means that auto's pick is faster;
its interval has a confidence of 95 %. The best of many measurements of a grid is a lucky one, so
that its --grid-best fastest configurations are measured again.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile
import time

from dsat_trial import BUILD, build_folder, interrupt_on_sigterm

HERE = pathlib.Path(__file__).resolve().parent
STRUCTURAL = """
search_space:
  /pipeline/activation_checkpoint_interval: [0, 1, 2]
  /activation_checkpointing/cpu_checkpointing: [false, true]
  /zero_optimization/offload_optimizer/device: [none, cpu]
  /zero_optimization/offload_param/device: [none, cpu]
"""


def describe(config):
    """The settings that differ between picks, in short."""
    zero = config.get("zero_optimization", {})
    text = f"stage {zero.get('stage', 0)}, micro-batch {config['train_micro_batch_size_per_gpu']}"
    interval = config.get("pipeline", {}).get("activation_checkpoint_interval", 0)
    on_host = config.get("activation_checkpointing", {}).get("cpu_checkpointing", False)
    if interval or on_host:  # The latter alone means every layer.
        text += f", checkpoints every {interval or 1}{' in host memory' if on_host else ''}"
    for name in ("offload_optimizer", "offload_param"):
        if zero.get(name, {}).get("device", "none") != "none":
            text += f", {name}"
    return text


class Bench:
    def __init__(self, args, folder):
        self.args = args
        self.dsat = str(pathlib.Path(args.build) / "dsat")
        self.experiment = pathlib.Path(args.experiment).resolve()
        self.folder = folder
        self.rows = []

    def run(self, *words):
        command = [self.dsat, *map(str, words), "--db", self.folder / "bench.db", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def search(self, method, experiment, *options):
        """The configurations of a search, its pick first and then by speed, and its launches."""
        started = time.monotonic()
        out = self.folder / method
        result = self.run(method, experiment, self.experiment.parent, *options, "--metric",
                          "throughput", "--confirm", 0, "--max-concurrent-trials", 1, "--out", out)
        launches = [trial for trial in result["trials"] if trial["kind"] != "profile"]
        others = [trial for trial in launches
                  if trial["metrics"] and trial["id"] != result["best_trial"]]
        others.sort(key=lambda trial: -trial["metrics"]["throughput"]["value"])
        print(f"{method}: {len(launches)} launches in {time.monotonic() - started:.0f} s",
              flush=True)
        pick = json.loads((out / "ds_config.json").read_text())
        return [pick] + [trial["ds_config"] for trial in others], len(launches)

    def compare(self, name, launches, pick, other):
        """Adds a row: the pick of auto against another configuration."""
        files = []
        for role, config in (("pick", pick), ("other", other)):
            files.append(self.folder / f"{role}{len(self.rows)}.json")
            files[-1].write_text(json.dumps(config))
        result = self.run("check", files[0], "--config", self.experiment, "--against", files[1],
                          "--confirm", self.args.rounds, "--tolerance", "99%",
                          "--out", self.folder / f"check{len(self.rows)}")
        factor = result["factor"]
        self.rows.append((name, launches, describe(other), factor))
        print(f"auto / {name}: {factor['value']:.3f} ({factor['low']:.3f} to "
              f"{factor['high']:.3f})", flush=True)

    def table(self):
        lines = ["| configuration | launches | settings | auto's pick / this, 95 % interval |",
                 "|---|--:|---|---|"]
        for name, launches, settings, factor in self.rows:
            lines.append(f"| {name} | {launches} | {settings} | {factor['value']:.2f} "
                         f"({factor['low']:.2f} to {factor['high']:.2f}) |")
        return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=build_folder, default=BUILD)
    parser.add_argument("--experiment", default=HERE.parent / "examples/recompute/deepspeed.yaml")
    parser.add_argument("--launches", type=int, default=16, help="of auto")
    parser.add_argument("--asha-trials", type=int, default=16, help="launches of asha")
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3], help="of the grid")
    parser.add_argument("--sizes", type=int, nargs="+", help="micro-batch sizes of the grid")
    parser.add_argument("--grid-trials", type=int, default=400,
                        help="after all places, knobs of the best ones come first")
    parser.add_argument("--grid-best", type=int, default=2,
                        help="how many of the grid's best are measured again")
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    if not pathlib.Path(args.experiment).is_file():
        parser.error(f"--experiment {args.experiment}: no such file; expected an experiment file")
    interrupt_on_sigterm()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(args, pathlib.Path(name))
        named = bench.folder / "exhaustive.yaml"
        sizes = f"  /train_micro_batch_size_per_gpu: {args.sizes}\n" if args.sizes else ""
        named.write_text(bench.experiment.read_text() + STRUCTURAL + sizes)
        auto, num_auto = bench.search("auto", bench.experiment, "--warm-start", "off",
                                      "--max-trials", args.launches + 1)
        asha, num_asha = bench.search("asha", bench.experiment, "--max-trials",
                                      args.asha_trials + 1)
        grid, num_grid = bench.search("grid", named, "--zero-stages", *args.stages, "--max-trials",
                                      args.grid_trials + 1)
        bench.compare("best of asha, published space", num_asha, auto[0], asha[0])
        for i, config in enumerate(grid[:args.grid_best]):
            bench.compare(f"number {i + 1} of the grid", num_grid, auto[0], config)
        bench.compare("auto's pick itself", num_auto, auto[0], auto[0])
        print("\n" + bench.table())


if __name__ == "__main__":
    main()
