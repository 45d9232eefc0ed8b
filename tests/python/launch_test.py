"""Scripts and launchers find in a trial what they find by hand, and start the trial's ranks."""
import json
import subprocess
import sys

import pytest
from conftest import free_port, remove_buffers

pytest.importorskip("deepspeed")

# As a host finds that has two of four ranks.
PLACE = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "1",
         "PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "15001"}


def run(trial, code, environment):
    """What a Python prints with the hook that dsat starts."""
    port = free_port()
    done = subprocess.run(
        [sys.executable, "-c", code], env={**trial.environment(0, 1, port), **environment},
        capture_output=True, text=True, check=False, cwd=trial.folder)
    remove_buffers(port)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


ONE_RANK = """
import os, torch.distributed as dist
before = int(os.environ.get("RANK", -1)), "MASTER_PORT" in os.environ
dist.init_process_group("gloo")
print(before, dist.get_world_size(), os.environ["MASTER_PORT"] == os.environ["DSAT_MASTER_PORT"])
"""


def test_one_rank_finds_no_launcher_until_it_makes_a_process_group(run_trial):
    run_trial.write_config()
    assert run(run_trial, ONE_RANK, {}) == "(-1, False) 1 True"


ACCELERATE = """
import sys
from accelerate.commands import launch
args = launch._validate_launch_command(launch.launch_command_parser().parse_args(sys.argv[1:]))[0]
print([args.num_processes, args.num_machines, args.machine_rank, args.main_process_ip,
       args.main_process_port])
"""


@pytest.mark.parametrize("words, found", [
    ([], [4, 2, 1, "10.0.0.1", 15001]),
    (["--num_processes", "6", "--main_process_port", "7"], [6, 2, 1, "10.0.0.1", 7])])
def test_accelerate_starts_the_trials_ranks_unless_its_arguments_say_otherwise(
        run_trial, words, found):
    pytest.importorskip("accelerate")
    run_trial.write_config()
    (run_trial.folder / "acc.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 8\n"
        "deepspeed_config: {zero_stage: 1}\n")
    argv = ['--config_file', 'acc.yaml', *words, 't.py']
    code = f"import sys; sys.argv[1:] = {argv}" + ACCELERATE
    assert run(run_trial, code, PLACE) == str(found)


def test_deepspeed_meets_at_the_trials_port(run_trial):
    run_trial.write_config()
    code = ("import json; from deepspeed.launcher import runner\n"
            "print(json.dumps([runner.parse_args(words).master_port for words in "
            "(['t.py'], ['--master_port', '7', 't.py'])]))")
    assert json.loads(run(run_trial, code, PLACE)) == [15001, 7]
