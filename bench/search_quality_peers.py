#!/usr/bin/env python3
"""Runs Optuna's samplers on the simulated machines of search_quality, one launch at a time.

Usage: search_quality_peers.py [--build BUILD] [--families NAME ...] [--seeds 5] [--trials 64]
                               [--samplers tpe gp random]
It needs Optuna (pip install optuna; gp also needs torch and scipy). `tpe` is the multivariate TPE
sampler, `random` draws uniformly; both draw micro-batch sizes up to twice the stage's approximate
maximum, and a launch that runs out of memory is a pruned trial. `gp` is the Gaussian process
sampler, which does not model conditional parameters: it draws stage, size and all knobs, of which
those of the stage count. The memory is a constraint, and the sampler is told the true need of every
launch, also of one that ran out of memory. Prints rows like search_quality's.
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
        self.space, self.best_ms, self.ranks = answer["space"], answer["best_ms"], answer["ranks"]

    def ask(self, request):
        self.server.stdin.write(json.dumps({**self.key, **request}) + "\n")
        self.server.stdin.flush()
        line = self.server.stdout.readline()
        if not line:  # It has said why.
            sys.exit(self.server.wait())
        return json.loads(line)


def largest_size(stage):
    return max(2 * stage["approx_max_micro_batch"], 2)


def draw(trial, stages):
    """Stage, then what that stage has."""
    name = trial.suggest_categorical("stage", list(stages))
    size = trial.suggest_int(f"size{name}", 1, largest_size(stages[name]), log=True)
    assignment = {STAGE: int(name), MICRO_BATCH: size}
    for knob in stages[name]["knobs"]:
        assignment[knob["pointer"]] = trial.suggest_categorical(
            f"{knob['pointer']} of {len(knob['values'])}", knob["values"])
    return assignment


def draw_all(trial, stages):
    """The same parameters in every trial."""
    name = trial.suggest_categorical("stage", list(stages))
    largest = max(map(largest_size, stages.values()))
    assignment = {STAGE: int(name), MICRO_BATCH: trial.suggest_int("size", 1, largest, log=True)}
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
    """The loss after each launch and its device-seconds, and how many ran out of memory."""
    constrained = isinstance(sampler, optuna.samplers.GPSampler)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    now_s, best, worst, loss, misfits, moments = 0, -math.inf, math.inf, math.inf, 0, []
    stages = {str(stage["stage"]): stage for stage in machine.space["stages"]}
    for launch in range(num_trials):
        trial = study.ask()
        assignment = (draw_all if constrained else draw)(trial, stages)
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
                best, loss = end["throughput"], end["sample_ms"] / machine.best_ms - 1
        moments.append((loss, now_s * machine.ranks))
    return moments, misfits


def reached(moments, loss):
    """Launches and device-seconds after which the loss stays at most this."""
    first = len(moments)
    while first > 0 and moments[first - 1][0] <= loss:
        first -= 1
    return (first + 1, moments[first][1]) if first < len(moments) else (math.inf, math.inf)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent.parent / "build")
    parser.add_argument("--families", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=5)
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
    print("| sampler | family | runs | to 2 % | within 40 | within 1 % | loss, % | worst, % | "
          "out of memory, % | device-s to 2 % |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in args.samplers:
        make, everything = samplers[name], []
        for family in args.families:
            runs = [search(Machine(server, family, seed), make(seed), args.trials)
                    for seed in range(1, args.seeds + 1)]
            everything += runs
            report(name, family, runs, args.trials)
        report(name, "**all**", everything, args.trials)
    server.stdin.close()
    server.wait()


def report(name, family, runs, num_trials):
    losses = [100 * moments[-1][0] for moments, _ in runs]
    to2 = [reached(moments, 0.02) for moments, _ in runs]
    share = lambda flags: sum(flags) / len(runs)
    text = lambda value: f"{value:.0f}" if value < math.inf else "never"
    print(f"| {name} | {family} | {len(runs)} | {text(statistics.median(t[0] for t in to2))} | "
          f"{share([t[0] <= 40 for t in to2]):.2f} | {share([loss <= 1 for loss in losses]):.2f} | "
          f"{statistics.median(losses):.2f} | {max(losses):.1f} | "
          f"{100 * sum(m for _, m in runs) / len(runs) / num_trials:.1f} | "
          f"{text(statistics.median(t[1] for t in to2))} |", flush=True)


if __name__ == "__main__":
    main()
