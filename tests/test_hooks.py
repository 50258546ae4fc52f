"""Functions of the user's: how they are loaded, and that arguments reach them by name, however they are written.

1. A file or module is loaded once, and whatever is wrong with it is said with the key and the fix.
2. Rewards get one list per agent, and `prompts` and `batch_items` only if they name them, wherever they stand.
3. Transitions and formatters get what they name of what is offered.
4. A function that cannot fit the team is refused when the run is built, never guessed at.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from commands import TINY, marl_train, refused, summary
from marl_runner.errors import ConfigError, DataError, RewardError, TransitionError
from marl_runner.formatters.call import PromptFormatter
from marl_runner.hooks import accepted_context, check_source, hook_name, load_function, signature_of
from marl_runner.rewards.call import RewardCaller
from marl_runner.rewards.python import python_reward
from marl_runner.transitions.call import TransitionCaller
from marl_runner.types import Task, Turn

TASK = Task(uid="7", fields={"prompt": "Hi", "tests": [1, 2]})
PROMPTS, ITEMS = ["Hi"], [{"prompt": "Hi", "tests": [1, 2]}]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- loading


def test_a_function_is_loaded_from_a_file_by_a_relative_an_absolute_and_a_home_path(monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    Path("deep").mkdir()
    Path("deep/mine.py").write_text("def score(first, second):\n    return [1.0]\n")
    for path in ("deep/mine.py", str(Path("deep/mine.py").absolute()), "~/deep/mine.py"):
        assert load_function(f"{path}:score", "reward.function")("a", "b") == [1.0]


def test_a_function_is_loaded_from_a_module():
    assert load_function("os.path:join", "reward.function") is os.path.join


def test_a_file_is_run_once_however_often_it_is_named():
    Path("mine.py").write_text("cache = {}\n\ndef score():\n    return cache\n\ndef revise():\n    return cache\n")
    score = load_function("mine.py:score", "reward.function")
    revise = load_function(f"{Path.cwd()}/mine.py:revise", "transition.function")
    assert score() is revise()


def test_files_of_one_name_in_two_folders_are_two():
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "mine.py").write_text(f"def score():\n    return {folder!r}\n")
    loaded = [load_function(f"{folder}/mine.py:score", "reward.function") for folder in ("a", "b", "a")]
    assert [function() for function in loaded] == ["a", "b", "a"]


def test_a_callable_object_and_a_private_function_are_loaded_too():
    Path("mine.py").write_text(
        "class Score:\n    def __call__(self):\n        return 3\n\nscore = Score()\n_low = len\n"
    )
    assert load_function("mine.py:score", "reward.function")() == 3
    assert load_function("mine.py:_low", "reward.function") is len


@pytest.mark.parametrize(
    ("text", "spec", "sentence"),
    [
        (None, "mine.py:score", r"reward.function=mine.py:score: no file mine.py \(looked in /"),
        ("", "mine.py", r"write path/to/file.py:function or package.module:function$"),
        ("", ":score", r"write path/to/file.py:function or package.module:function$"),
        ("", "mine.py:", r"write path/to/file.py:function or package.module:function$"),
        ("a = 1\ndef skore(): pass\n", "mine.py:score", r"mine.py has no function 'score'; it has skore$"),
        ("score = 1\n", "mine.py:score", r"mine.py has no function 'score'; it has none$"),
        (
            "import nowhere\n",
            "mine.py:score",
            r"importing mine.py raised ModuleNotFoundError: No module named 'nowhere'$",
        ),
        ("1 / 0\n", "mine.py:score", r"importing mine.py raised ZeroDivisionError: division by zero$"),
        ("def score(:\n", "mine.py:score", r"importing mine.py raised SyntaxError: .*\(mine.py, line 1\)$"),
        ("import sys; sys.exit(0)\n", "mine.py:score", r"importing mine.py raised SystemExit: 0$"),
        (
            None,
            "nowhere.at.all:score",
            r"importing nowhere.at.all raised ModuleNotFoundError: No module named 'nowhere'$",
        ),
        ("x = 1\n", "mine:score", r"ModuleNotFoundError: .*; mine is in the working folder: set PYTHONPATH=\.$"),
    ],
)
def test_what_cannot_be_loaded_is_said_with_the_key_and_the_reason(text, spec, sentence):
    if text is not None:
        Path("mine.py").write_text(text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_function(spec, "reward.function")
    assert str(caught.value).startswith(f"reward.function={spec}: ")


def test_a_path_may_hold_colons_and_spaces():
    Path("a: b").mkdir()
    Path("a: b/mine.py").write_text("def score():\n    return 3\n")
    assert check_source("a: b/mine.py:score", "reward.function") == ("a: b/mine.py", "score")
    assert load_function("a: b/mine.py:score", "reward.function")() == 3


def test_a_broken_reward_file_ends_the_command_with_2_and_one_line():
    Path("mine.py").write_text("1 / 0\n")
    ended = marl_train(*TINY, "reward=python", "reward.function=mine.py:score", "hydra.run.dir=run")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert ended.err.endswith("importing mine.py raised ZeroDivisionError: division by zero\n")
    assert summary("run")["status"] == "failed"


def test_a_reward_and_a_transition_of_ones_own_train():
    text = "def score(first, second, prompts, batch_items):\n    return [float(prompts[0].startswith('again'))]\n"
    text += "def again(prompt, agent_completions, num_agents):\n    return [f'again {prompt}'] * num_agents\n"
    Path("mine.py").write_text(text)
    own = ["reward=python", "reward.function=mine.py:score", "transition=python", "transition.function=mine.py:again"]
    turns = ["trainer.num_turns=2", "trainer.early_termination_threshold=null"]
    ended = marl_train(*TINY, *own, *turns, "hydra.run.dir=run")
    assert (ended.code, ended.err) == (0, "")
    # Turn 2 of the last evaluation: its prompt begins with "again".
    assert summary("run")["objective"] == 1.0


def test_a_transition_file_that_is_not_there_is_refused_at_the_gate():
    own = ["transition=python", "transition.function=nowhere.py:again", "trainer.num_turns=2"]
    assert refused(*own).startswith("transition.function=nowhere.py:again: no file nowhere.py (looked in /")


def test_a_declared_range_leaves_the_users_function_as_it_was():
    declared = python_reward("os.path:join", [0, 2])
    assert declared.reward_range == (0.0, 2.0)
    assert not hasattr(os.path.join, "reward_range")
    assert signature_of(declared, "reward_func") == signature_of(os.path.join, "reward_func")


# --- rewards


class Scorer:
    def __call__(self, first, second, *, prompts):
        return [received(first=first, second=second, prompts=prompts)]

    def method(self, first, second, batch_items=None):
        return [received(first=first, second=second, batch_items=batch_items)]

    @staticmethod
    def static(first, second):
        return [received(first=first, second=second)]


def received(**arguments: object) -> float:
    """The reward that says that every argument arrived as it should."""
    right = {"first": ["a"], "second": ["b"], "both": (["a"], ["b"]), "prompts": PROMPTS, "batch_items": ITEMS}
    assert arguments == {name: right[name] for name in arguments}
    return 0.5


def by_position_only(first, second, /):
    return [received(first=first, second=second)]


def context_first(prompts, first, second):
    return [received(first=first, second=second, prompts=prompts)]


def context_between(first, batch_items, second, prompts):
    return [received(first=first, second=second, prompts=prompts, batch_items=batch_items)]


def context_by_keyword(first, second, *, batch_items, prompts):
    return [received(first=first, second=second, prompts=prompts, batch_items=batch_items)]


def the_row_itself(first, second, *, batch_item):
    return [received(first=first, second=second, batch_items=[batch_item])]


def everything(*both, **context):
    return [received(both=both, **context)] if context.keys() == {"prompts", "batch_items"} else []


def variadic(*both):
    return [received(both=both)]


def variadic_with_context(*both, prompts):
    return [received(both=both, prompts=prompts)]


def with_a_default(first, second, scale=2.0):
    return [received(first=first, second=second) * scale / 2]


def with_an_option(first, second, weight):
    return [received(first=first, second=second) * weight]


@pytest.mark.parametrize(
    "function",
    [
        by_position_only,
        context_first,
        context_between,
        context_by_keyword,
        the_row_itself,
        everything,
        variadic,
        variadic_with_context,
        with_a_default,
        Scorer(),
        Scorer().method,
        Scorer.static,
        lambda first, second: [received(first=first, second=second)],
        lambda *both: [received(both=both)],
        functools.partial(with_an_option, weight=1.0),
        functools.partial(with_a_default, scale=2.0),
        functools.partial(context_by_keyword, prompts=PROMPTS, batch_items=ITEMS),
        functools.wraps(with_a_default)(lambda *both: with_a_default(*both)),
    ],
)
def test_a_reward_of_any_make_gets_its_arguments(function):
    assert RewardCaller(function, num_agents=2)(["a", "b"], "Hi", TASK, "here").value == 0.5


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda first: [0.0], r"takes 1 completion arguments, but the team has 2 agents"),
        (lambda first, second, third: [0.0], r"takes 3 completion arguments, but the team has 2 agents"),
        (lambda prompts, first: [0.0], r"takes 1 completion arguments, but the team has 2 agents"),
        (lambda: [0.0], r"takes 0 completion arguments, but the team has 2 agents"),
        (lambda *, prompts: [0.0], r"takes 0 completion arguments, but the team has 2 agents"),
        (lambda first, second, *, model: [0.0], r"needs the keyword model, which is not offered: bind it first"),
        (3, r"reward_func must be callable, got 3"),
    ],
)
def test_a_reward_that_does_not_fit_the_team_is_refused(function, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RewardCaller(function, num_agents=2)


def test_a_function_without_a_signature_is_told_to_be_wrapped():
    with pytest.raises(ConfigError, match="has no readable signature; wrap it in a def that names its arguments"):
        signature_of(type, "reward_func")


def test_a_type_error_inside_a_reward_is_its_own_and_the_reward_is_called_once():
    calls = []

    def score(first, second):
        calls.append(first)
        raise TypeError("score() missing 1 required positional argument: 'third'")

    with pytest.raises(
        RewardError, match=r"score raised TypeError: .*'third' at test_hooks.py:\d+ \(here; completions \['a', 'b'\]\)"
    ):
        RewardCaller(score, num_agents=2)(["a", "b"], "Hi", TASK, "here")
    assert len(calls) == 1


def test_a_hook_cannot_change_the_row_of_the_dataset():
    def score(first, second, batch_items):
        batch_items[0]["prompt"] = "changed"
        return [0.0]

    RewardCaller(score, num_agents=2)(["a", "b"], "Hi", TASK, "here")
    assert TASK.fields["prompt"] == "Hi"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (with_an_option, "test_hooks.with_an_option"),
        (functools.partial(functools.partial(with_an_option, weight=1), 2), "test_hooks.with_an_option"),
        (Scorer(), "test_hooks.Scorer"),
        (Scorer().method, "test_hooks.Scorer.method"),
        (len, "builtins.len"),
        (dict.get, "builtins.method_descriptor"),
    ],
)
def test_a_hook_is_named_by_what_its_author_wrote(function, name):
    assert hook_name(function) == name


def test_context_is_given_to_who_names_it_or_takes_everything():
    offered = {"prompts": 1, "batch_items": 2}
    for function, names in (
        (lambda a: 0, []),
        (lambda a, prompts: 0, ["prompts"]),
        (lambda prompts, /: 0, []),
        (lambda a, *, batch_items=None: 0, ["batch_items"]),
        (lambda *a, **rest: 0, ["prompts", "batch_items"]),
    ):
        assert list(accepted_context(signature_of(function, "hook"), offered)) == names


# --- transitions and formatters

HISTORY = (Turn(("p0", "p1"), ("a0", "a1")), Turn(("q0", "q1"), ("b0", "b1")))
OFFERED = {
    "prompt": "Hi",
    "agent_completions": ["b0", "b1"],
    "num_agents": 2,
    "prompt_history_per_agent": [["p0", "q0"], ["p1", "q1"]],
    "response_history_per_agent": [["a0", "b0"], ["a1", "b1"]],
    "batch_item": {"prompt": "Hi", "tests": [1, 2]},
}


def test_a_transition_gets_what_it_names_and_everything_if_it_takes_everything():
    seen = {}

    def everything(**offered):
        seen.update(offered)
        return ["x", "y"]

    assert TransitionCaller(everything, num_agents=2)(TASK, HISTORY) == ("x", "y")
    assert seen == OFFERED
    some = TransitionCaller(lambda num_agents, prompt, *, extra=3: [prompt] * num_agents, num_agents=2)
    assert some(TASK, HISTORY) == ("Hi", "Hi")
    partial = TransitionCaller(functools.partial(lambda prompt, word: [prompt, word], word="w"), num_agents=2)
    assert partial(TASK, HISTORY) == ("Hi", "w")


def test_a_transition_that_needs_what_is_not_offered_is_refused():
    with pytest.raises(
        ConfigError, match=r"needs teacher, model, which is not offered; it may name agent_completions, b"
    ):
        TransitionCaller(lambda prompt, teacher, *, model: [], num_agents=2)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (["x"], "returned 1 prompts, expected a list of 2 prompts, one per agent"),
        (["x", "y", "z"], "returned 3 prompts, expected a list of 2 prompts, one per agent"),
        ("xy", "returned str, expected a list of 2 prompts, one per agent"),
        (None, "returned NoneType, expected a list of 2 prompts, one per agent"),
        ({"0": "x", "1": "y"}, "returned dict, expected a list of 2 prompts, one per agent"),
        (["x", None], "returned NoneType for agent 1, expected text"),
    ],
)
def test_a_wrong_answer_of_a_transition_names_hook_task_and_turn(answer, sentence):
    with pytest.raises(TransitionError) as caught:
        TransitionCaller(lambda prompt: answer, num_agents=2)(TASK, HISTORY)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("external_transition test_hooks.")
    assert str(caught.value).endswith("(task 7, after turn 2)")


def test_a_formatter_gets_the_row_and_the_next_prompt_if_it_names_it():
    plain = PromptFormatter(lambda row: f"<{row['prompt']}>", agent=0, passthrough=False)
    assert (plain(TASK), plain(TASK, "next")) == ("<Hi>", "<next>")
    naming = PromptFormatter(lambda row, external_prompts=None: f"{row['prompt']}/{external_prompts}", 0, False)
    assert (naming(TASK), naming(TASK, "next")) == ("Hi/None", "next/next")
    assert PromptFormatter(plain._formatter, agent=0, passthrough=True)(TASK, "next") == "next"
    with pytest.raises(DataError, match=r"of agent 1 returned int, expected text \(task 7\)"):
        PromptFormatter(lambda row: 3, agent=1, passthrough=False)(TASK)
    with pytest.raises(DataError, match=r"of agent 1 raised KeyError: 'nothing' at test_hooks.py:\d+ \(task 7\)"):
        PromptFormatter(lambda row: row["nothing"], agent=1, passthrough=False)(TASK)
