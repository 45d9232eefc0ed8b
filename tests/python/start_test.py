"""What the import hook saves at the start of a trial, and that it changes nothing else."""
import subprocess
import sys

import pytest
from conftest import ROOT, SCRIPTS, free_port, remove_buffers

pytest.importorskip("deepspeed")


def run(trial, code):
    """What a Python prints that starts in the trial."""
    port = free_port()
    done = subprocess.run([sys.executable, "-c", code], env=trial.environment(0, 1, port),
                          capture_output=True, text=True, check=False, cwd=trial.folder)
    remove_buffers(port)
    assert done.returncode == 0, done.stderr
    return done.stdout


IS_LOADED = "print('\\nloaded', 'torch._dynamo.symbolic_convert' in sys.modules)"


@pytest.mark.parametrize("script, stage", [(ROOT / "examples/dict-config/train.py", 3),
                                           (SCRIPTS / "own_optimizer.py", 1)])
def test_a_trial_that_compiles_nothing_does_not_load_it(run_trial, script, stage):
    run_trial.write_config(zero_optimization={"stage": stage}, zero_allow_untested_optimizer=True,
                           optimizer={"type": "AdamW", "params": {"torch_adam": True}})
    printed = run(run_trial, f"""
import atexit, runpy, sys
atexit.register(lambda: {IS_LOADED})
sys.path.insert(0, {str(script.parent)!r})
sys.argv = ["train.py"]
runpy.run_path({str(script)!r}, run_name="__main__")
""")
    assert "\nloaded False\n" in printed
    assert run_trial.read("hook-rank0.json")["ran"]["zero_stage"] == stage
    assert len(run_trial.read("hook-rank0.json")["losses"]) == 5


# A function that was kept away from the compiler before it was loaded stays away from it.
COMPILE = """
import sys, torch
@torch.compiler.disable
def apart(x):
    return x + torch.compiler.is_compiling()
def traced(x):
    return apart(x * 1) + 10 * torch.compiler.is_compiling()
weight = torch.nn.Parameter(torch.ones(1))
weight.grad = torch.ones(1)
torch.optim.SGD([weight], lr=1).step()
print(sys.modules["torch._dynamo"].graph_break(), apart(torch.zeros(1)).item())
""" + IS_LOADED + """
compiled = torch.compile(traced, backend="eager")
print(compiled(torch.zeros(1)).item(), apart(torch.zeros(1)).item())
""" + IS_LOADED + """
from torch._dynamo import config, graph_break
print(type(torch._dynamo).__name__, config is torch._dynamo.config,
      graph_break is torch._dynamo.graph_break, torch._dynamo.__spec__.loader.__class__.__name__)
"""
COMPILED = """10.0 0.0

loaded True
module True True SourceFileLoader
"""


def test_a_script_that_compiles_loads_it(run_trial):
    run_trial.write_config()
    assert run(run_trial, COMPILE) == "None 0.0\n\nloaded False\n" + COMPILED


def test_the_full_run_loads_it_as_without_dsat(run_trial):
    run_trial.write_config(measure="")
    assert run(run_trial, COMPILE) == "None 0.0\n\nloaded True\n" + COMPILED


@pytest.mark.parametrize("words", ["import torch._dynamo.config",
                                   "import torch._dynamo as d; d.trace_rules.get_torch_obj_rule_map"])
def test_what_only_the_real_module_has_loads_it(run_trial, words):
    run_trial.write_config()
    assert run(run_trial, f"import sys; {words}; {IS_LOADED}") == "\nloaded True\n"


def test_a_function_that_deepspeed_compiles_is_compiled_when_it_is_called(run_trial):
    run_trial.write_config()
    assert run(run_trial, f"""
import sys, deepspeed, torch
@deepspeed.runtime.compiler.compile()
def double(x):
    '''Doubles.'''
    return 2 * x + 10 * torch.compiler.is_compiling()
{IS_LOADED}
torch._dynamo.config.suppress_errors = False
torch.compiler.set_stance("force_eager")
print(double.__name__, double.__doc__, double(torch.ones(1)).item())
{IS_LOADED}
""").endswith("\nloaded False\ndouble Doubles. 2.0\n\nloaded True\n")


COLLECT = """
import gc
passes = []
gc.callbacks.append(lambda phase, info: passes.append(info["generation"]))
{first}
print("\\nfew", len(passes) < 10, gc.isenabled(), gc.get_freeze_count())
"""


@pytest.mark.parametrize("first, enabled", [
    ("import torch, deepspeed, transformers; transformers.Trainer", True),
    ("gc.disable(); import torch", False)])
def test_the_garbage_collector_pauses_while_large_libraries_are_imported(run_trial, first, enabled):
    pytest.importorskip("transformers")
    run_trial.write_config()
    assert run(run_trial, COLLECT.format(first=first)).endswith(f"\nfew True {enabled} 0\n")
