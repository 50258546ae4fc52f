"""Two agents write one program: the first a helper function `aux`, the last the entry point that may call it.

What both a reward and a transition need to know of such a program; levels are in `rewards/code_pair.py`.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marl_runner.sandbox.jobs import Job, Outcome
from marl_runner.sandbox.pool import Sandbox
from marl_runner.sandbox.suite import parse_suite

HELPER = "aux"
"""Name of the helper function."""
REQUIRED_FIELDS = ("prompt", "entry_point", "test")
"""Columns of a code task; see `datasets/human_eval.py`."""
SOURCE = "<completion>"
"""File name of generated code, for the interpreter's messages."""

# What the interpreter finds odd in generated code (`"\d"`, `x is 1`) is nothing for the console of a run.
warnings.filterwarnings("ignore", module=re.escape(SOURCE))

_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_CODE_LINE = re.compile(r"\s|$|#|@|[)\]}]|(import|from|def|class|async|if|for|while|try|with)\b|\w+\s*=")


@dataclass(frozen=True)
class HelperUse:
    """What the entry point does with the helper.

    Attributes:
        calls: It calls it.
        is_wrapper: It does nothing else: its body is one return of a call, or an assignment of one and its return.
        ignores_value: It never uses what a call returns.
    """

    calls: bool
    is_wrapper: bool
    ignores_value: bool


@dataclass(frozen=True)
class Judgement:
    """What is known of a joint program.

    Attributes:
        helper_defined: The first agent's code defines `aux`, with a return.
        main_defined: The last agent's code defines the entry point, with a return.
        syntax_error: Why the joined program does not parse; "" if it does.
        outcome: Of its tests; None if it was not run.
        use: What the entry point does with the helper; None if the program was not run.
    """

    helper_defined: bool
    main_defined: bool
    syntax_error: str = ""
    outcome: Outcome | None = None
    use: HelperUse | None = None


def judge(helper_text: str, main_text: str, row: Mapping[str, Any], sandbox: Sandbox) -> Judgement:
    """Looks at two completions level by level, as far as the levels hold; the tests run in the sandbox.

    Args:
        helper_text: The first agent's completion.
        main_text: The last agent's completion.
        row: The task: `prompt`, `entry_point`, `test`.
        sandbox: Runs the tests; a program that it has just run is not run again.
    """
    entry_point = str(row["entry_point"])
    helper, main = code_in(helper_text, HELPER), code_in(main_text, entry_point)
    helper_defined = defines(helper, HELPER)
    if not defines(main, entry_point):
        return Judgement(helper_defined, main_defined=False)
    preamble = preamble_of(str(row["prompt"]), entry_point)
    # What does not define the helper is prose, or a function of another name: no part of the program.
    program = "\n\n".join([preamble, helper, main] if helper_defined else [preamble, main])
    try:
        parsed(program)
    except SyntaxError as error:
        return Judgement(helper_defined, main_defined=True, syntax_error=str(error.msg))
    outcome = sandbox(Job(program, entry_point, str(row["test"]), preamble))
    return Judgement(helper_defined, True, "", outcome, helper_use(main, entry_point))


def row_problem(row: Mapping[str, Any]) -> str:
    """What makes a row no code task, for messages (`has a 'test' without an assertion`); "" if nothing does."""
    if not str(row["entry_point"]).isidentifier():
        return f"has an 'entry_point' that is no name of a function: {row['entry_point']!r}"
    try:
        num_tests = parse_suite(str(row["test"])).num_tests
    except (SyntaxError, ValueError) as error:
        return f"has a 'test' that is no Python ({error})"
    return "" if num_tests else "has a 'test' without an assertion"


def code_in(text: str, name: str) -> str:
    """The code of a completion that is to define the function `name`.

    It is the first block between fences (```) that defines it, else the text outside that does: all of it if it is
    Python, else the lines around the definition that look like code; else the first block, else everything.
    """
    segments = _FENCE.split(text)
    begins = _definition(name)
    for inside in segments[1::2]:
        if begins.search(inside):
            return textwrap.dedent(inside).strip("\n")
    for outside in segments[::2]:
        if begins.search(outside):
            return _code_lines(textwrap.dedent(outside), begins)
    return textwrap.dedent(segments[1] if len(segments) > 1 else text).strip("\n")


def _definition(name: str) -> re.Pattern[str]:
    return re.compile(rf"^[ \t]*def[ \t]+{re.escape(name)}[ \t]*\(", re.MULTILINE)


def _code_lines(text: str, begins: re.Pattern[str]) -> str:
    """The lines around a definition up to the first on either side that looks like prose; all, if they are Python."""
    try:
        parsed(text)
    except SyntaxError:
        pass
    else:
        return text.strip("\n")
    lines = text.split("\n")
    first = last = next(number for number, line in enumerate(lines) if begins.match(line))
    while first > 0 and _CODE_LINE.match(lines[first - 1]):
        first -= 1
    while last + 1 < len(lines) and _CODE_LINE.match(lines[last + 1]):
        last += 1
    return "\n".join(lines[first : last + 1]).strip("\n")


def parsed(code: str) -> ast.Module:
    """The syntax tree of generated code.

    Raises:
        SyntaxError: It is no Python, or nested more deeply than the parser goes.
    """
    try:
        return ast.parse(code, SOURCE)
    except (ValueError, MemoryError, RecursionError) as error:
        raise SyntaxError(str(error) or "too deeply nested") from error


def defines(code: str, name: str) -> bool:
    """Whether code defines the function `name` at its top level, with a return of some value.

    Code that does not parse is searched for the definition and, in the lines indented below it, a return.
    """
    try:
        tree = parsed(code)
    except SyntaxError:
        return _seems_to_define(code, name)
    function = _function(tree, name)
    return function is not None and any(
        isinstance(node, ast.Return) and node.value is not None for node in _own_nodes(function)
    )


def _seems_to_define(code: str, name: str) -> bool:
    found = re.search(rf"^def[ \t]+{re.escape(name)}[ \t]*\(.*(\n([ \t].*|$))*", code, re.MULTILINE)
    return found is not None and re.search(r"(^[ \t]+|:[ \t]*|;[ \t]*)return\b[ \t]*[^\s#]", found[0], re.M) is not None


def preamble_of(prompt: str, entry_point: str) -> str:
    """What a prompt that is code has before the entry point: imports and functions that it may call.

    "" where the prompt is prose, or is not Python up to there.
    """
    found = re.search(rf"^(async[ \t]+)?def[ \t]+{re.escape(entry_point)}[ \t]*\(", prompt, re.MULTILINE)
    before = "" if found is None else prompt[: found.start()].strip("\n")
    try:
        parsed(before)
    except SyntaxError:
        return ""
    return before


def helper_use(main: str, entry_point: str) -> HelperUse:
    """What the entry point of the last agent's code does with the first agent's `aux`.

    Nothing, if that code defines an `aux` of its own.

    Args:
        main: Code that parses and defines the entry point.
        entry_point: Its name.
    """
    tree = parsed(main)
    function = _function(tree, entry_point)
    if function is None or _function(tree, HELPER) is not None:
        return HelperUse(calls=False, is_wrapper=False, ignores_value=False)
    calls = [node for node in ast.walk(function) if _is_helper_call(node)]
    ignored = [node for statement in ast.walk(function) for node in _ignored_calls(statement, function)]
    return HelperUse(
        calls=bool(calls),
        is_wrapper=_is_wrapper(function),
        ignores_value=bool(calls) and len(ignored) == len(calls),
    )


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """The last definition of a function at the top level, which is the one in force."""
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return found[-1] if found else None


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


def _is_helper_call(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == HELPER


def _is_wrapper(function: ast.FunctionDef) -> bool:
    """Whether the body, but for a docstring, is `return aux(…)`, or `x = aux(…)` and `return x`."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    match body:
        case [ast.Return(value=value)]:
            return _is_helper_call(value)
        case [
            ast.Assign(targets=[ast.Name(id=assigned)], value=value)
            | ast.AnnAssign(target=ast.Name(id=assigned), value=value),
            ast.Return(value=ast.Name(id=returned)),
        ]:
            return _is_helper_call(value) and assigned == returned
    return False


def _ignored_calls(statement: ast.AST, function: ast.FunctionDef) -> list[ast.AST]:
    """The calls of the helper that a statement makes for nothing: as a statement, or for a name that is never read."""
    match statement:
        case ast.Expr(value=value):
            return [value] if _is_helper_call(value) else []
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value)
        ):
            return [value] if value is not None and _is_helper_call(value) and not _reads(function, name) else []
    return []


def _reads(function: ast.FunctionDef, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) for node in ast.walk(function)
    )
