"""Runs `marl-train` inside the test process, and composes configurations without running them."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from marl_runner import cli
from marl_runner.policies.tiny import character_tokenizer, tiny_model
from marl_runner.schema import conf_dir, register_schema

ROOT = Path(__file__).parents[1]
TINY = ("debug=step", "agents.hidden_size=16", "agents.num_layers=1", "trainer.max_new_tokens=2")
"""The smallest real run: 2 agents, 2 tasks, K=2, one evaluation row, 2 new tokens."""
CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def marl_train(*arguments: str) -> Ended:
    """Types `marl-train *arguments` in the working folder."""
    out, err, argv = StringIO(), StringIO(), sys.argv
    with own_logging(), redirect_stdout(out), redirect_stderr(err):
        try:
            sys.argv = ["marl-train", *arguments]
            code = cli.command()
        except SystemExit as error:
            code = 0 if error.code is None else int(error.code)
        finally:
            sys.argv = argv
    return Ended(code, out.getvalue(), err.getvalue())


@contextmanager
def own_logging():
    """Puts the root logger back as it was: a run has handlers of its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        for handler in set(root.handlers) - set(handlers):
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)


def refused(*arguments: str) -> str:
    """The one line that a command ends with which is wrong; nothing is printed or made."""
    before = sorted(Path().rglob("*"))
    ended = marl_train(*arguments)
    assert ended.code == 2, ended
    assert ended.out == ""
    assert ended.err.startswith("marl-train: ")
    assert ended.err.count("\n") == 1, ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err) < 300, ended.err
    assert sorted(Path().rglob("*")) == before
    return ended.err.removeprefix("marl-train: ").rstrip("\n")


def composed(*overrides: str):
    """The configuration that these overrides make."""
    register_schema()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("config", list(overrides))


def summary(folder: str | Path) -> dict:
    return json.loads((Path(folder) / "summary.json").read_text())


def model_folder(folder: Path, *, chat: bool = False) -> str:
    """A TINY model with its character tokenizer, as `from_pretrained` wants it."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = CHAT if chat else None
    tiny_model(seed=0, hidden_size=16, num_layers=1, num_heads=2, context_length=512).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
