"""What a script's source shows of the trainer's arguments."""
import ast

import pytest
from dsat._script import Script

PARSER = "parser = HfArgumentParser((OwnArguments, TrainingArguments))\n"
FROM_FILE = "own, training = parser.parse_json_file(path)\n"
FROM_COMMAND = "own, training = parser.parse_args_into_dataclasses()\n"


@pytest.mark.parametrize("reads, parses", [
    (FROM_COMMAND, True), (FROM_FILE, False), (FROM_FILE + FROM_COMMAND, True),
    (FROM_FILE.replace("json_file", "dict"), False)])
def test_a_script_that_reads_arguments_from_a_file_alone_parses_none(reads, parses):
    facts = Script(ast.parse(PARSER + reads)).facts()
    assert (facts["runs_trainer"], facts["parses"]) == (True, parses)
    # The file has the batch sizes, and not their defaults.
    assert bool(facts["numbers"]) == parses
