"""Says what a script's source shows of the arguments of Hugging Face's trainer.

usage: python3 _script.py SCRIPT

Prints a JSON object: `runs_trainer`, whether it names a trainer's class that has such arguments, or
Lightning's strategy; `parses`, whether it takes the arguments from its command line; `reads_file`,
whether it also takes them from a file of --config; `numbers`, the batch sizes that it sets.
"""
import ast
import json
import re
import sys
from typing import Any, Dict, List, Optional, Set

# The arguments for batch sizes, and their defaults.
_DEFAULTS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
_PARSERS = {"HfArgumentParser", "TrlParser"}
_FROM_COMMAND = {"parse_args_into_dataclasses", "parse_args_and_config"}
_FROM_FILE = {"parse_json_file", "parse_yaml_file", "parse_dict"}


def _name(node: ast.AST) -> str:
    """The last name of `a.b.C` or `C`; "" of any other expression."""
    return getattr(node, "attr", None) or getattr(node, "id", "")


def _is_trls(name: str) -> bool:
    return name.endswith("Config") and name != "ModelConfig"


class Script:
    """The classes and calls of a script."""

    def __init__(self, tree: ast.AST) -> None:
        nodes = list(ast.walk(tree))
        self.names = {_name(node) for node in nodes} | {
            alias.name for node in nodes if isinstance(node, ast.ImportFrom)
            for alias in node.names}
        self.calls = [node for node in nodes if isinstance(node, ast.Call)]
        self.stored = [getattr(node, "id", None) or getattr(node, "arg") for node in nodes
                       if isinstance(node, ast.arg) or isinstance(node, ast.Name) and (
                           isinstance(node.ctx, ast.Store))]
        self.constants = {
            target.id: node.value.value for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets if isinstance(target, ast.Name)}
        self.parsers = [call for call in self.calls if _name(call.func) in _PARSERS]
        self.classes = {name for name in self.names if name.endswith("TrainingArguments")}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trl":
                self.classes |= {alias.name for alias in node.names if _is_trls(alias.name)}
            if isinstance(node, ast.Attribute) and _name(node.value) == "trl":
                self.classes |= {node.attr} if _is_trls(node.attr) else set()
            if isinstance(node, ast.ClassDef) and self.classes & set(map(_name, node.bases)):
                self.classes.add(node.name)
        self.built = [call for call in self.calls if _name(call.func) in self.classes]
        own = self._parsed_classes()
        called = {_name(call.func) for call in self.calls}
        self.parses = bool(self.parsers and self.classes | own) and not self.built and not (
            own & called) and not (called & _FROM_FILE and not called & _FROM_COMMAND)
        self.sets = {node.attr for node in nodes
                     if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}

    def _parsed_classes(self) -> Set[str]:
        """Classes of other files, such as MYConfig, that a parser is given."""
        given = {_name(node) for call in self.parsers for argument in call.args
                 for node in ast.walk(argument)}
        return {name for name in given if re.fullmatch("[A-Z]{2,}Config", name)}

    def _value(self, node: ast.AST) -> Any:
        """The value of a constant, or of a variable that is set to one once; otherwise None."""
        name = getattr(node, "id", "")
        return self.constants.get(name) if self.stored.count(name) == 1 else (
            getattr(node, "value", None))

    def number(self, argument: str) -> Optional[int]:
        """What the script sets the argument to; None if it does not show that."""
        values: List[Any] = [
            self._value(keyword.value)
            for call in self.calls for keyword in call.keywords if keyword.arg == argument and (
                call in self.built
                or re.fullmatch(r"[A-Z]\w*(Config|Arguments|Args)", _name(call.func)))]
        if values or argument in self.sets:
            return values[0] if len(values) == 1 and isinstance(values[0], int) and (
                argument not in self.sets) else None
        hides = any(keyword.arg is None for call in self.built for keyword in call.keywords)
        return None if hides or not (self.built or self.parses) else _DEFAULTS[argument]

    def facts(self) -> Dict[str, Any]:
        numbers = {argument: self.number(argument) for argument in _DEFAULTS}
        return {"runs_trainer": bool(self.classes) or self.parses or (
                    "DeepSpeedStrategy" in self.names),
                "parses": self.parses, "reads_file": "TrlParser" in self.names,
                "numbers": {name: value for name, value in numbers.items() if value is not None}}


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        print(json.dumps(Script(ast.parse(file.read())).facts()))
