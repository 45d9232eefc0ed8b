#!/usr/bin/env python3
"""Runs Optuna's samplers on the simulated machines of search_quality, one launch at a time.

Usage: search_quality_peers.py [--build BUILD] [--families NAME ...] [--seeds 5]
                               [--first-seed 1] [--trials 64] [--samplers tpe gp random]
It needs Optuna (pip install optuna; gp also needs torch and scipy). `tpe` is the multivariate TPE
sampler, `random` draws uniformly; both draw micro-batch sizes up to twice the stage's approximate
maximum, and a launch that runs out of memory is a pruned trial. `gp` is the Gaussian process
sampler, which does not model conditional parameters: it draws stage, size and all knobs, of which
those of the stage count. The memory is a constraint, and the sampler is told the true need of every
launch, also of one that ran out of memory. Prints rows like search_quality's, which has the same
machines for the same seeds (--families drawn).
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys

MICRO_BATCH = "/train_micro_batch_size_per_gpu"
STAGE = "/zero_optimization/stage"


class Machine:
    """A surface behind `search_quality --serve`."""

    def __init__(self, server, family, seed):
        self.server, self.key = server, {"family": family, "seed": seed}
        answer = self.ask({})
        self.space, self.best_ms = answer["space"], answer["best_ms"]

    def ask(self, request):
        self.server.stdin.write(json.dumps({**self.key, **request}) + "\n")
        self.server.stdin.flush()
        line = self.server.stdout.readline()
        if not line:  # It has said why.
            sys.exit(self.server.wait())
        return json.loads(line)


def largest_size(stage):
    return max(2 * stage["approx_max_micro_batch"], 2)


def draw_size(trial, name, largest, batch):
    """The keys of a micro-batch size, which divides the batch of a rank if that is fixed."""
    if batch == 0:
        return {MICRO_BATCH: trial.suggest_int(name, 1, largest, log=True)}
    sizes = [size for size in range(1, batch + 1) if batch % size == 0]
    size = sizes[trial.suggest_int(name, 0, len(sizes) - 1)]
    return {MICRO_BATCH: size, "/gradient_accumulation_steps": batch // size}


def draw(trial, stages, batch):
    """Stage, then what that stage has."""
    name = trial.suggest_categorical("stage", list(stages))
    assignment = {STAGE: int(name),
                  **draw_size(trial, f"size{name}", largest_size(stages[name]), batch)}
    for knob in stages[name]["knobs"]:
        assignment[knob["pointer"]] = trial.suggest_categorical(
            f"{knob['pointer']} of {len(knob['values'])}", knob["values"])
    return assignment


def draw_all(trial, stages, batch):
    """The same parameters in every trial."""
    name = trial.suggest_categorical("stage", list(stages))
    largest = max(map(largest_size, stages.values()))
    assignment = {STAGE: int(name), **draw_size(trial, "size", largest, batch)}
    knobs = {knob["pointer"]: knob["values"] for stage in stages.values()
             for knob in stage["knobs"]}
    for pointer, values in knobs.items():
        if len(values) > 2:  # Sizes, ascending.
            value = values[trial.suggest_int(pointer, 0, len(values) - 1)]
        else:
            value = trial.suggest_categorical(pointer, values)
        if any(knob["pointer"] == pointer for knob in stages[name]["knobs"]):
            assignment[pointer] = value
    return assignment


def search(machine, sampler, num_trials):
    """The loss after each launch, and how many ran out of memory."""
    constrained = isinstance(sampler, optuna.samplers.GPSampler)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    now_s, best, worst, loss, misfits, moments = 0, -math.inf, math.inf, math.inf, 0, []
    batch = machine.space.get("samples_per_step", 0)
    stages = {str(stage["stage"]): stage for stage in machine.space["stages"]}
    for launch in range(num_trials):
        trial = study.ask()
        assignment = (draw_all if constrained else draw)(trial, stages, batch)
        end = machine.ask({"assignment": assignment, "launch": launch + 1, "started_s": now_s})
        now_s = end["ended_s"]
        trial.set_user_attr("excess", end["need_share"] - 1)
        if end["throughput"] is None:
            misfits += 1
            if constrained:
                study.tell(trial, worst if worst < math.inf else 0)
            else:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, end["throughput"])
            worst = min(worst, end["throughput"])
            if end["throughput"] > best:
                best = end["throughput"]
                # Null: it fits in less than half of its launches.
                loss = (end["sample_ms"] or math.inf) / machine.best_ms - 1
        moments.append(loss)
    return moments, misfits


def reached(moments, loss):
    """The launches after which the loss stays at most this."""
    first = len(moments)
    while first > 0 and moments[first - 1] <= loss:
        first -= 1
    return first + 1 if first < len(moments) else math.inf


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent.parent / "build")
    parser.add_argument("--families", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--samplers", nargs="+", default=["tpe", "random"],
                        choices=["tpe", "gp", "random"])
    args = parser.parse_args()
    global optuna
    try:
        import optuna  # Not needed for --help.
    except ImportError as error:
        sys.exit(f"search_quality_peers.py: {error}; it needs Optuna: {sys.executable} -m pip "
                 "install optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers = {
        "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=True),
        "gp": lambda seed: optuna.samplers.GPSampler(
            seed=seed, constraints_func=lambda trial: (trial.user_attrs["excess"],)),
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    }
    server = subprocess.Popen([args.build / "search_quality", "--serve"], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    print("| sampler | family | runs | to 2 % | within 40 | within 1 % | loss after 10, 20, 40 and "
          "all, % | worst, % | out of memory, % |\n|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in args.samplers:
        make, everything = samplers[name], []
        for family in args.families:
            runs = [search(Machine(server, family, seed), make(seed), args.trials)
                    for seed in range(args.first_seed, args.first_seed + args.seeds)]
            everything += runs
            report(name, family, runs, args.trials)
        report(name, "**all**", everything, args.trials)
    server.stdin.close()
    server.wait()


def report(name, family, runs, num_trials):
    losses = [100 * moments[-1] for moments, _ in runs]
    to2 = [reached(moments, 0.02) for moments, _ in runs]
    share = lambda flags: sum(flags) / len(runs)
    after = lambda launches: f"{statistics.median(100 * m[launches - 1] for m, _ in runs):.2f}"
    text = lambda value: f"{value:.0f}" if value < math.inf else "never"
    print(f"| {name} | {family} | {len(runs)} | {text(statistics.median(to2))} | "
          f"{share([launches <= 40 for launches in to2]):.2f} | {share([loss <= 1 for loss in losses]):.2f} | "
          f"{', '.join(after(launches) for launches in (10, 20, 40, num_trials))} | "
          f"{max(losses):.1f} | "
          f"{100 * sum(m for _, m in runs) / len(runs) / num_trials:.1f} |", flush=True)


if __name__ == "__main__":
    main()
