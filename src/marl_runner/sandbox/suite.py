"""The tests of a task, taken apart: every statement with an assertion in it is one test."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True)
class Statement:
    """One statement of the tests.

    Attributes:
        source: Its text.
        code: What is run.
        is_test: False of what only prepares others.
    """

    source: str
    code: CodeType
    is_test: bool


@dataclass(frozen=True)
class Suite:
    """Tests in order, with what prepares them.

    Attributes:
        statements: All of them, as they are run.
        names: What the tested function is called in them, beside its own name.
    """

    statements: tuple[Statement, ...]
    names: tuple[str, ...]

    @property
    def num_tests(self) -> int:
        """Number of tests."""
        return sum(statement.is_test for statement in self.statements)


def parse_suite(test: str) -> Suite:
    """Takes tests apart.

    Where they define `check(candidate)`, as HumanEval's do, its body is what is run, after everything around it. An
    assertion of a constant (`assert True`) tests nothing and is left out.

    Raises:
        SyntaxError, ValueError: They are no Python.
    """
    body = ast.parse(test).body
    checks = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args]
    names: tuple[str, ...] = ()
    if checks:
        (check, *_) = checks
        names = (check.args.args[0].arg,)
        around = [node for node in body if node is not check and not _calls_check(node)]
        statements = [_statement(node, is_test=False) for node in around]
        statements += [_statement(node, _asserts(node)) for node in check.body if not _is_constant_assert(node)]
    else:
        statements = [_statement(node, _asserts(node)) for node in body if not _is_constant_assert(node)]
    return Suite(tuple(statements), names)


def _statement(node: ast.stmt, is_test: bool) -> Statement:
    code = compile(ast.Module([node], []), "<test>", "exec")
    return Statement(ast.unparse(node), code, is_test)


def _asserts(node: ast.stmt) -> bool:
    return any(isinstance(part, ast.Assert) for part in ast.walk(node))


def _is_constant_assert(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant)


def _calls_check(node: ast.stmt) -> bool:
    """Whether it is `check(…)`, which some tests end with."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "check"
    )
