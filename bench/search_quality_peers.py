#!/usr/bin/env python3
"""Runs Optuna's samplers and SMAC3 on the simulated machines of search_quality, one at a time.

Usage: search_quality_peers.py [--build BUILD] [--families NAME ...] [--seeds 5]
                               [--first-seed 1] [--trials 64] [--samplers tpe gp random smac]
It needs Optuna (pip install optuna; gp also needs torch and scipy) or SMAC3 (pip install smac; a
misfit costs what the slowest launch did). `tpe` is the multivariate TPE sampler, `random` draws
uniformly; both draw micro-batch sizes up to twice the stage's approximate maximum, and a launch
that runs out of memory is a pruned trial. `gp` is the Gaussian process sampler, which does not
model conditional parameters: it draws stage, size and all knobs, of which those of the stage count.
The memory is a constraint, and the sampler is told the true need of every launch, also of one that
ran out of memory. Prints rows like search_quality's, which has the same machines for the same seeds
(--families drawn).
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

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


def batch_of(machine):
    """The samples of a step on a rank, 0 if they are searched."""
    return machine.space.get("samples_per_step", 0)


def stages_of(machine):
    return {str(stage["stage"]): stage for stage in machine.space["stages"]}


def largest_size(stage):
    return max(2 * stage["approx_max_micro_batch"], 2)


def range_of_sizes(largest, batch):
    """The ends of what a sampler draws for a size: an index of divisors if the batch is fixed."""
    return (0, len(divisors(batch)) - 1) if batch else (1, largest)


def divisors(batch):
    return [size for size in range(1, batch + 1) if batch % size == 0]


def size_keys(drawn, batch):
    """The keys of a micro-batch size, which divides the batch of a rank if that is fixed."""
    if batch == 0:
        return {MICRO_BATCH: drawn}
    size = divisors(batch)[drawn]
    return {MICRO_BATCH: size, "/gradient_accumulation_steps": batch // size}


def draw_size(trial, name, largest, batch):
    first, last = range_of_sizes(largest, batch)
    return size_keys(trial.suggest_int(name, first, last, log=batch == 0), batch)


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


class OptunaPeer:
    def __init__(self, machine, sampler, constrained=False):
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        self.constrained, self.worst = constrained, math.inf
        self.batch, self.stages = batch_of(machine), stages_of(machine)

    def ask(self):
        self.trial = self.study.ask()
        return (draw_all if self.constrained else draw)(self.trial, self.stages, self.batch)

    def tell(self, end):
        self.trial.set_user_attr("excess", end["need_share"] - 1)
        if end["throughput"] is not None:
            self.worst = min(self.worst, end["throughput"])
            self.study.tell(self.trial, end["throughput"])
        elif self.constrained:
            self.study.tell(self.trial, self.worst if self.worst < math.inf else 0)
        else:
            self.study.tell(self.trial, state=optuna.trial.TrialState.PRUNED)


class SmacPeer:
    """SMAC3's random forest, with the size and the knobs of a stage below the stage."""

    def __init__(self, machine, seed, num_trials):
        self.batch, self.stages, self.costs = batch_of(machine), stages_of(machine), []
        space = ConfigSpace.ConfigurationSpace(seed=seed)
        stage = ConfigSpace.Categorical("stage", list(self.stages))
        space.add(stage)
        for name, has in self.stages.items():
            sizes, below = range_of_sizes(largest_size(has), self.batch), []
            if sizes[0] < sizes[1]:
                below.append(ConfigSpace.Integer(f"{name} size", sizes, log=self.batch == 0))
            below += [ConfigSpace.Categorical(f"{name} {at}", range(len(knob["values"])))
                      for at, knob in enumerate(has["knobs"]) if len(knob["values"]) > 1]
            space.add(below)
            space.add([ConfigSpace.EqualsCondition(one, stage, name) for one in below])
        self.folder = tempfile.TemporaryDirectory()
        scenario = smac.Scenario(space, deterministic=True, n_trials=num_trials, seed=seed,
                                 output_directory=pathlib.Path(self.folder.name))
        facade = smac.HyperparameterOptimizationFacade
        self.search = facade(scenario, lambda config, seed=0: 0.0, overwrite=True,
                             intensifier=facade.get_intensifier(scenario, max_config_calls=1),
                             logging_level=50)

    def ask(self):
        self.info = self.search.ask()
        drawn = dict(self.info.config)
        name = drawn["stage"]
        has = self.stages[name]
        first, _ = range_of_sizes(largest_size(has), self.batch)
        assignment = {STAGE: int(name), **size_keys(drawn.get(f"{name} size", first), self.batch)}
        for at, knob in enumerate(has["knobs"]):
            assignment[knob["pointer"]] = knob["values"][drawn.get(f"{name} {at}", 0)]
        return assignment

    def tell(self, end):
        if end["throughput"] is not None:
            self.costs.append(-math.log(end["throughput"]))
            cost = self.costs[-1]
        else:
            cost = max(self.costs, default=0.0)
        self.search.tell(self.info, smac.runhistory.dataclasses.TrialValue(cost=cost))


def search(machine, peer, num_trials):
    """The loss after each launch, and how many ran out of memory."""
    now_s, best, loss, misfits, moments = 0, -math.inf, math.inf, 0, []
    for launch in range(num_trials):
        end = machine.ask({"assignment": peer.ask(), "launch": launch + 1, "started_s": now_s})
        now_s = end["ended_s"]
        peer.tell(end)
        misfits += end["throughput"] is None
        if (end["throughput"] or -math.inf) > best:
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
                        choices=["tpe", "gp", "random", "smac"])
    args = parser.parse_args()
    global optuna, smac, ConfigSpace
    try:  # Not needed for --help.
        if "smac" in args.samplers:
            import ConfigSpace
            import smac
            import smac.runhistory.dataclasses
        if args.samplers != ["smac"]:
            import optuna
            optuna.logging.set_verbosity(optuna.logging.ERROR)
    except ImportError as error:
        sys.exit(f"search_quality_peers.py: {error}; it needs {sys.executable} -m pip install "
                 "optuna smac")
    samplers = {
        "tpe": lambda machine, seed: OptunaPeer(
            machine, optuna.samplers.TPESampler(seed=seed, multivariate=True)),
        "gp": lambda machine, seed: OptunaPeer(
            machine, optuna.samplers.GPSampler(
                seed=seed, constraints_func=lambda trial: (trial.user_attrs["excess"],)), True),
        "random": lambda machine, seed: OptunaPeer(
            machine, optuna.samplers.RandomSampler(seed=seed)),
        "smac": lambda machine, seed: SmacPeer(machine, seed, args.trials),
    }
    server = subprocess.Popen([args.build / "search_quality", "--serve"], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    print("| sampler | family | runs | to 2 % | within 40 | within 1 % | loss after 10, 20, 40 and "
          "all, % | worst, % | out of memory, % |\n|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in args.samplers:
        make, everything = samplers[name], []
        for family in args.families:
            machines = [(Machine(server, family, seed), seed)
                        for seed in range(args.first_seed, args.first_seed + args.seeds)]
            runs = [search(machine, make(machine, seed), args.trials)
                    for machine, seed in machines]
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
