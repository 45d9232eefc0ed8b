"""Finds what a script needs on devices that are not here, by runs on fake tensors.

_dry_process.py makes these runs.

usage: python3 -m dsat._dry_run REQUEST

The request is a JSON object: `script`, a file, or a module if `is_module`; its `arguments`;
`folder`, which it starts in; `environment`; `ds_config`, what to change in the script's config;
`ranks`; `memory` of a device in bytes (0: no limit); `on_gpu`; `all_stages`; `speeds`, the FLOP/s
and the bytes/s of a device, or those of one of this machine's cores. If `accelerate launch` starts
the ranks, `accelerate` has its arguments, and `ranks` of 0 means as they say. Prints a JSON object
(docs/estimate.md), or one with `error`. With `stages`, the request is for the profile of a search
over them, and the answer, which the file `report` gets if it is given, is a rank's report with it,
or with `error`. No run goes on after `limit_s`.
"""
from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import timeit
from typing import Any, Dict, List, Optional, Tuple

from dsat._dry_process import MICRO_BATCH, Job, Run, Runner, preload
from dsat._trial import Config, write_json

_STEPS = "gradient_accumulation_steps"
_MOST_SAMPLES = 1 << 31
_MOST_RANKS = 4096
_TOLERANCE = 0.01
_LAUNCH_S = 5e-6  # An operator on a GPU takes at least so long.


class DryRunError(Exception):
    """Says in one line why there is no answer.

    `recurs`: a launch would end in the same way, because the command is wrong.
    """

    def __init__(self, why: str, recurs: bool = False) -> None:
        super().__init__(why)
        self.recurs = recurs


def _apply_accelerate(words: List[str], request: Dict[str, Any]) -> None:
    """accelerate tells its settings to the ranks by variables, which it is asked for."""
    import torch.distributed.run as torchrun
    from accelerate.commands import launch

    def start(args: Any, environment: Optional[Dict[str, str]] = None) -> None:
        request["environment"].update(
            (name, value) for name, value in (environment or dict(os.environ)).items()
            if before.get(name) != value and name != "PYTHONPATH")
        started.append(args)
    before, started = dict(os.environ), []
    torchrun.run = start
    launch.simple_launcher = lambda args: start(
        args, launch.prepare_simple_launcher_cmd_env(args)[1])
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = launch.launch_command_parser().parse_args(words)
    except SystemExit:  # The parser has refused them.
        raise DryRunError(said.getvalue().strip().split("\n")[-1]) from None
    launch.launch_command(parsed)
    if not started:
        raise DryRunError(
            "accelerate launch would start the script in a way that dsat does not follow")
    request["ranks"] = request["ranks"] or int(parsed.num_processes or 1)


def _measure_speeds() -> List[float]:
    """FLOP/s and bytes/s of one core, and the seconds of an operator that does nothing."""
    import torch
    from dsat._memory import MemoryTracker
    factor, values, one = torch.ones(512, 512), torch.ones(1 << 23), torch.ones(2, 8)
    small = torch.nn.Sequential(*[part for _ in range(8) for part in (
        torch.nn.Linear(8, 8), torch.nn.GELU())])

    def train() -> None:
        small(one).sum().backward()
    train()
    with MemoryTracker() as tracker:
        tracker.mark(list(small.parameters()), "parameters")
        train()
    product_s, sum_s, step_s = (min(timeit.repeat(run, repeat=10, number=1)) for run in (
        lambda: factor @ factor, lambda: torch.add(values, 1, out=values), train))
    return [2 * 512 ** 3 / product_s, 2 * values.nbytes / sum_s, step_s / len(tracker.phases)]


def _totals(run: Run) -> Any:
    """The bytes in device memory after each operator."""
    return run.curve[:, :-1].sum(axis=1)


def _parts(run: Run) -> Any:
    """The most bytes of each part of the training between two changes of its phase."""
    import numpy
    begins = numpy.flatnonzero(numpy.diff(run.phases)) + 1
    return numpy.maximum.reduceat(_totals(run), [0, *begins])


def _aligned(runs: List[Run]) -> List[Any]:
    """Bytes of two runs at the same places: operators if both have as many, else parts, or all."""
    for values in (_totals, _parts):
        result = [values(run) for run in runs]
        if len({len(one) for one in result}) == 1:
            return result
    return [one.max(keepdims=True) for one in map(_totals, runs)]


class Line:
    """The peak of a run as a function of a number x: the most of a + b x over all operators."""

    def __init__(self, runs: List[Run], xs: List[float]) -> None:
        first, second = _aligned(runs)
        self._slopes = (second - first) / (xs[1] - xs[0])
        self._starts = first - self._slopes * xs[0]

    def at(self, x: float) -> int:
        return int((self._starts + self._slopes * x).max())

    def highest(self) -> List[Tuple[float, float]]:
        """The pairs a, b whose lines are the highest for some x above 0, in the order of these."""
        import numpy
        lines, x = [], 0.0
        while True:
            heights = self._starts + self._slopes * x
            steepest = numpy.flatnonzero(heights >= heights.max() - 0.5)
            at = steepest[self._slopes[steepest].argmax()]
            lines.append((float(self._starts[at]), float(self._slopes[at])))
            steeper = self._slopes > self._slopes[at]
            if not steeper.any():
                return lines
            x = float(((self._starts[at] - self._starts[steeper])
                       / (self._slopes[steeper] - self._slopes[at])).min())

    def last_within(self, limit: int) -> int:
        """The largest whole number up to _MOST_SAMPLES whose peak is in the limit; 0 if none."""
        return max(0, min(_MOST_SAMPLES, *(
            int((limit - start) // slope) if slope > 0 else _MOST_SAMPLES * (start <= limit)
            for start, slope in self.highest())))


class Estimate:
    """The answer to a request."""

    def __init__(self, request: Dict[str, Any], runner: Runner, ranks: int) -> None:
        self._request, self._runner, self._ranks = request, runner, ranks
        base = self._base = request["ds_config"]
        say("running the script on fake tensors")
        self._first = self._run_first(0)
        facts = self._facts = self._first.facts
        self._size = facts["micro_batch_size"]
        self._own_batch = self._size if facts["stage"] is None else 0
        asked = base.get(MICRO_BATCH, self._size)
        if self._own_batch and asked != self._size:
            self._size, self._first = asked, self._run_first(self._own_batch)
            self._facts = self._first.facts
        # A search has data for the submitted size, but maybe not for more.
        self._sizes = (self._size, self._size // 2 or 2 if "stages" in request else 2 * self._size)

    def _run_first(self, own_batch: int) -> Run:
        run = self._runner.run_all([Job(self._ranks, self._base)], own_batch)[0]
        if "error" in run.facts:
            raise DryRunError(run.facts["error"], run.facts.get("recurs", False))
        return run

    def _config(self, samples: int, section: Optional[Config] = None) -> Config:
        config = {**self._base, MICRO_BATCH: samples, _STEPS: self._facts["accumulation_steps"]}
        config.pop("train_batch_size", None)
        return config if section is None else {**config, "zero_optimization": section}

    def answer(self) -> Dict[str, Any]:
        facts, size, ranks, limit = self._facts, self._size, self._ranks, self._request["memory"]
        sizes = (size, 2 * size) if size else (0,)  # 0: no loader shows it.
        rows = [("as submitted", facts["stage"], None), *(
            self._other_sections() if self._request["all_stages"] else [])]
        jobs: Dict[Any, Job] = {
            (name, is_last, samples): Job(ranks, self._config(samples, section), is_last)
            for name, stage, section in rows for is_last in self._places(stage)
            for samples in sizes}
        jobs["check"] = Job(ranks, self._config(3 * size))
        others = [max(2, ranks), 2 * max(2, ranks)] if limit and facts["stage"] else []
        jobs.update({number: Job(number, self._base) for number in others})
        done = (rows[0][0], False, size)
        runs = self._run(jobs if size else {}, done)
        result = {**{key: facts[key] for key in ("num_params", "trainable_num_params", "stage",
                                                 "accumulation_steps")},
                  "micro_batch_size": size, "flops_per_sample": self._flops_per_sample(),
                  "ranks": ranks, "memory_bytes": limit, "on_gpu": self._request["on_gpu"],
                  "notes": self._notes(runs.get((done[0], False, 2 * size)), runs.get("check"))}
        result["rows"] = [
            {"settings": name, **self._row([[runs[name, is_last, samples] for samples in sizes]
                                            for is_last in self._places(stage)])}
            for name, stage, _ in rows]
        scaled = [runs[number] for number in others if number in runs]
        if scaled and not any("error" in run.facts for run in scaled):
            line = Line(scaled, [1 / number for number in others])
            fits = [number for number in range(1, 1 + _MOST_RANKS) if line.at(1 / number) <= limit]
            result.update({"fewest_ranks": fits[0]} if fits else {})
        return result

    def profile(self) -> Dict[str, Any]:
        """The report of a rank whose profile has the peaks at all stages that there is time for."""
        self._check_follows()
        facts, (size, _) = self._facts, self._sizes
        offloads = {"offload_optimizer": 1, "offload_param": 3}  # From which stage on.
        rows = [(facts["stage"], facts["section"], {})]
        for stage in self._request["stages"]:
            section = {key: value for key, value in facts["section"].items()
                       if stage >= offloads.get(key, 0)}
            if stage != facts["stage"]:
                rows.append((stage, {**section, "stage": stage}, {}))
        for name in facts["trainer"].keys() & {"gradient_checkpointing"}:
            rows.append((facts["stage"], facts["section"], {name: not facts["trainer"][name]}))
        if 0 < self._request["memory"] < _totals(self._first).max():
            rows += [(stage, section, {}) for name, stage, section in self._other_sections()
                     if "_offload" in name and stage in self._request["stages"]]
        done = (0, False, size)

        def jobs(sizes: Tuple[int, ...]) -> Dict[Any, Job]:
            # The first rank first, as there may not be time for all.
            return {(at, is_last, samples): Job(
                self._ranks, self._config(samples, section), is_last, of)
                for is_last in (False, True) for at, (stage, section, of) in enumerate(rows)
                if is_last in self._places(stage) for samples in sizes}
        runs = self._run(jobs(self._sizes), done)
        if self._sizes[1] < size and "error" in runs[0, False, self._sizes[1]].facts:
            self._sizes = (size, 2 * size)  # The script may refuse smaller ones.
            runs.update(self._run(jobs(self._sizes[1:]), done))
        places: List[Dict[str, Any]] = []
        for at, (stage, section, trainer) in enumerate(rows):
            first, *others = [[runs[at, is_last, samples] for samples in self._sizes]
                              for is_last in self._places(stage)]
            others = [place for place in others if not any("error" in run.facts for run in place)]
            lines = self._row([first, *others]).get("lines")
            if not lines:
                continue
            times = [run.facts["passes_ms"] for run in first]
            slope_ms = (times[1] - times[0]) / (self._sizes[1] - self._sizes[0])
            devices = [(section.get(key) or {}).get("device", "none") for key in offloads]
            places.append({"stage": stage, "offloads_optimizer": devices[0] != "none",
                           "offloads_params": devices[1] != "none", "switched": bool(trainer),
                           "lines": lines, "passes_ms": [times[0] - slope_ms * size, slope_ms],
                           **{key: first[0].facts[key]
                              for key in ("passes_sent", "update_ms", "update_sent")}})
        if not places or places[0]["stage"] != facts["stage"]:
            raise DryRunError(runs[0, False, self._sizes[1]].facts["error"])
        highest = [max(start + slope * x for start, slope in places[0]["lines"])
                   for x in (size, 2 * size)]
        on_gpu = self._request["on_gpu"]
        return {"ran": facts["ran"], "profile": {
            "num_params": facts["num_params"],
            "trainable_num_params": facts["trainable_num_params"],
            "activation_bytes_per_sample": int(highest[1] - highest[0]) // size,
            "forward_flops_per_sample": self._flops_per_sample() // 3,
            "device": "" if on_gpu else "cpu", "trainer": facts["trainer"],
            "dry_places": places,
            "process_bytes": 0 if on_gpu else facts["process_bytes"]}}

    def _check_follows(self) -> None:
        """Raises DryRunError if the script has not trained two steps with the config."""
        facts, script, given = self._facts, self._request["script"], self._base.get(MICRO_BATCH)
        if facts["stage"] is None or facts["num_steps"] < 2:
            raise DryRunError(f"{script}: it ended before the second step of an engine of "
                              f"deepspeed.initialize(){facts['ended']}")
        if given not in (None, self._size):
            raise DryRunError(f"{script}: it trains with micro-batches of {self._size} samples, and "
                              f"its config has {given}")
        if not self._request["on_gpu"] and (
                facts["ran"]["reduce_bucket_size"] > facts["num_params"]):
            # A bucket takes no more memory there than what it holds.
            self._base = {**self._base, "zero_optimization": {
                **facts["section"], "reduce_bucket_size": facts["num_params"]}}
            self._first = self._run_first(0)
            self._facts = self._first.facts

    def _run(self, jobs: Dict[Any, Job], done: Any) -> Dict[Any, Run]:
        """Runs the jobs but for `done`, which was the first."""
        jobs = {key: job for key, job in jobs.items() if key != done}
        say(f"running it with {len(jobs)} more configs")
        runs = dict(zip(jobs, self._runner.run_all(list(jobs.values()), self._own_batch)))
        for run in runs.values():
            # Its peak lacks what the optimizer makes in the first step.
            if run.facts.get("num_steps", 2) < min(2, self._facts["num_steps"]):
                run.facts["error"] = ("the script ended after its first optimizer step"
                                      f"{run.facts['ended']}")
        return {done: self._first, **runs}

    def _flops_per_sample(self) -> int:
        facts = self._facts
        return int(facts["flops"] // (facts["num_steps"] * max(1, self._size)
                                      * facts["accumulation_steps"]))

    def _places(self, stage: Optional[int]) -> Tuple[bool, ...]:
        """Whether the last rank is run, too: stages 1 and 2 partition gradients in their order."""
        return (False, True) if stage in (1, 2) and self._ranks > 1 and self._size else (False,)

    def _notes(self, doubled: Optional[Run], check: Optional[Run]) -> List[str]:
        """What limits the answer."""
        notes, size = [], self._size
        if self._facts["num_steps"] < 2:
            notes.append("The script ended after its first optimizer step"
                         f"{self._facts['ended']}.")
        if doubled is None or check is None:
            return [*notes, "No data loader shows the micro-batch size: the script's own counts."]
        if "error" in doubled.facts:
            return [*notes, f"With micro-batch {2 * size}: {doubled.facts['error']}"]
        if "error" not in check.facts:
            real = int(_totals(check).max())
            off = Line([self._first, doubled], [size, 2 * size]).at(3 * size) / real - 1
            if abs(off) > _TOLERANCE:
                notes.append(f"The peak is no straight line of the micro-batch: the sizes {size} "
                             f"and {2 * size} tell {100 * off:+.1f} % of that of {3 * size}.")
        return notes

    def _row(self, places: List[List[Run]]) -> Dict[str, Any]:
        """The answer for one config, from its runs with one or two sizes at one or two ranks."""
        from dsat._memory import KINDS
        for place in places:
            if "error" in place[0].facts:
                return {"refused": place[0].facts["error"]}
        largest = max((place[0] for place in places), key=lambda run: int(_totals(run).max()))
        totals, limit = _totals(largest), self._request["memory"]
        most = int(totals.argmax())
        row: Dict[str, Any] = {
            "peak_bytes": int(totals[most]), "host_bytes": int(largest.curve[:, -1].max()),
            "kinds": dict(zip(KINDS[:-1], map(int, largest.curve[most])))}
        if limit:
            row["fits"] = row["peak_bytes"] <= limit
        if all(len(place) == 2 and "error" not in place[1].facts for place in places):
            lines = [Line(place, list(self._sizes)) for place in places]
            row["lines"] = [pair for line in lines for pair in line.highest()]
            largest = min(line.last_within(limit) for line in lines)
            if limit and largest < _MOST_SAMPLES:  # Else the peak does not grow with it.
                row["largest_micro_batch"] = largest
        return row

    def _other_sections(self) -> List[Tuple[str, int, Config]]:
        if self._facts["stage"] is None:
            return []
        given = self._facts["section"]
        host = {"device": "cpu"}
        offloads = {"": {}, "_offload_optimizer": {"offload_optimizer": host},
                    "_offload": {"offload_optimizer": host, "offload_param": host}}
        common = {key: value for key, value in given.items() if not key.startswith("offload_")}
        return [(f"stage_{stage}{name}", stage, {**common, **offload, "stage": stage})
                for stage in range(4) for name, offload in offloads.items()
                if stage == 3 or not name or stage > 0 and name == "_offload_optimizer"]


def say(text: str) -> None:
    """Shows what happens now, on standard error."""
    print(f"dsat: {text}", file=sys.stderr, flush=True)


def main() -> None:
    request = json.loads(sys.argv[1])
    os.environ.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="dsat-dry-run-"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    answer: Dict[str, Any] = {}
    try:
        os.chdir(request["folder"])
        if not request["is_module"] and not os.path.exists(request["script"]):
            raise DryRunError(f"{request['script']}: no such file, which the command starts",
                              recurs=True)
        if "accelerate" in request:
            _apply_accelerate(request["accelerate"], request)
        preload(request["script"])
        request["speeds"] = [*request["speeds"], _LAUNCH_S] if (
            "speeds" in request) else _measure_speeds()
        estimate = Estimate(request, Runner(request, scratch), request["ranks"])
        answer = estimate.profile() if "stages" in request else estimate.answer()
    except ImportError as error:
        answer = {"error": f"{sys.executable}: {error}; install it, or put the Python that has it "
                           "first in PATH"}
    except (DryRunError, OSError) as error:
        answer = {"error": str(error), "recurs": getattr(error, "recurs", False)}
    except KeyboardInterrupt:
        pass
    shutil.rmtree(scratch, ignore_errors=True)
    if not answer:
        os._exit(130)  # Processes that still run end with this one, here and below.
    if "report" in request:
        write_json(pathlib.Path(request["report"]), answer)
    else:
        print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
