"""A checkpoint that lacks weights, a console that goes away: what must neither pass silently nor end a run."""

from __future__ import annotations

import errno
import io
import json

import pytest
from rich.console import Console

from marl_runner.errors import ConfigError
from marl_runner.loading import load_model
from marl_runner.policies.tiny import tiny_model
from marl_runner.tracking.console import ConsoleTracker
from marl_runner.types import Event


def test_a_checkpoint_without_all_weights_is_refused_as_they_would_be_random(tmp_path):
    tiny_model(0, 16, 1, 2, 64).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2, "layer_types": None}))
    with pytest.raises(ConfigError, match=r"does not hold all weights of its configuration \(missing_keys: "):
        load_model(str(tmp_path), None, None)


def test_a_whole_checkpoint_loads(tmp_path):
    tiny_model(0, 16, 1, 2, 64).save_pretrained(tmp_path)
    assert load_model(str(tmp_path), None, None).config.num_hidden_layers == 1


class Full(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_console_that_is_full_ends_the_showing_and_not_the_run(caplog):
    tracker = ConsoleTracker(Console(file=Full()))
    tracker.log(Event("eval", 0, 0, {"eval/turn_1/reward_mean": 0.5}))
    tracker.close("completed")
    assert caplog.text.count("the console cannot be written to") == 1
