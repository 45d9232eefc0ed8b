"""Draws the charts of README.md from what benchmarks print.

usage: charts.py --quality FILE --tuners FILE --memory FILE [--out docs]

QUALITY has the output of `search_quality --families drawn` for several methods, and of
search_quality_peers.py; TUNERS that of deepspeed_tuners; MEMORY that of script_memory.py. Writes
search.svg, tuners.svg and memory.svg. It needs matplotlib (pip install matplotlib).
"""
import argparse
import pathlib
import re

import matplotlib
matplotlib.use("svg")
from matplotlib import pyplot as plt  # noqa: E402

# Wong 2011, "Points of view: Color blindness".
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]
LAUNCHES = (10, 20, 40, 64)
NAMES = {"auto": "dsat auto", "asha": "ASHA", "binary": "binary", "random": "random",
         "tpe": "Optuna TPE", "gp": "Optuna GP"}


def rows_of(path):
    """The rows of Markdown tables: for each the cells by the names of their columns."""
    head = []
    for line in path.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|-: "):
            continue
        if cells[0] in ("method", "sampler", "script"):
            head = cells
        else:
            yield list(zip(head, cells))


def draw_search(path, axes):
    for row in rows_of(path):
        cells = dict(row)
        name = cells.get("method") or cells.get("sampler")
        if cells.get("machines", cells.get("family")) not in ("**drawn**", "drawn"):
            continue
        losses = [float(loss) for loss in next(
            value for key, value in row if key.startswith("loss after")).split(",")]
        label = NAMES.get(name, name) if "method" in cells or name != "random" else "Optuna random"
        axes.plot(LAUNCHES, losses, marker="o", label=label,
                  color=COLORS[len(axes.lines) % len(COLORS)])
    axes.set(xscale="log", yscale="log", xticks=LAUNCHES, xlabel="launches",
             ylabel="slower than the best, %", title="Median loss on drawn machines")
    axes.set_xticklabels(LAUNCHES)
    axes.minorticks_off()
    axes.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes.legend(frameon=False, fontsize=8)


def draw_tuners(path, axes):
    picks = []
    for row in rows_of(path):
        cells = [value for _, value in row]
        factor = re.match(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", dict(row)["dsat / DeepSpeed"])
        if factor:
            seconds = [float(cell.split()[0]) for key, cell in row if key == "its time"]
            picks.append((cells[0], seconds[0] / seconds[1], *map(float, factor.groups())))
    at = range(len(picks))
    axes.bar([i - 0.2 for i in at], [pick[1] for pick in picks], 0.36, color=COLORS[4],
             label="time of the search")
    axes.bar([i + 0.2 for i in at], [pick[2] for pick in picks], 0.36, color=COLORS[0],
             label="speed of the answer",
             yerr=[[pick[2] - pick[3] for pick in picks], [pick[4] - pick[2] for pick in picks]])
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(list(at), [pick[0] for pick in picks], fontsize=8)
    axes.set(ylabel="dsat / DeepSpeed's autotuner", title="Four scripts, two CPU ranks",
             ylim=(0, 1.25 * max(pick[4] for pick in picks)))
    axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)


def draw_memory(path, axes):
    cells = re.findall(r"^(\w+) +(\d) +\d+ +(\d+) +(\d+) ", path.read_text(), re.MULTILINE)
    for stage in sorted({cell[1] for cell in cells}):
        peaks = [(int(real) / 2**20, int(said) / 2**20)
                 for _, at, said, real in cells if at == stage]
        axes.plot(*zip(*peaks), "o", markersize=4, alpha=0.7, color=COLORS[int(stage)],
                  label=f"ZeRO stage {stage}")
    ends = [min(map(int, (cell[3] for cell in cells))) / 2**20,
            max(map(int, (cell[3] for cell in cells))) / 2**20]
    axes.plot(ends, ends, color="black", linewidth=0.8, zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="measured peak, MiB", ylabel="predicted peak, MiB",
             title=f"Memory of {len({cell[0] for cell in cells})} scripts, before a launch")
    axes.legend(frameon=False, fontsize=8)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    charts = {"search": ("--quality", draw_search), "tuners": ("--tuners", draw_tuners),
              "memory": ("--memory", draw_memory)}
    for name, (flag, _) in charts.items():
        parser.add_argument(flag, type=pathlib.Path, dest=name, metavar="FILE")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs"))
    args = parser.parse_args()
    matplotlib.rcParams.update({"svg.hashsalt": "dsat", "svg.fonttype": "none",
                                "savefig.facecolor": "white"})
    for name, (_, draw) in charts.items():
        if getattr(args, name) is None:
            continue
        figure, axes = plt.subplots(figsize=(4.2, 3.1), layout="constrained")
        draw(getattr(args, name), axes)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(args.out / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
