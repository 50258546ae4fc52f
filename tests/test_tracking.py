"""Trackers: the local files, the console, Weights & Biases (real offline runs), and the `tracking` options."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import pty
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from rich.console import Console

from marl_runner.errors import ConfigError, NumericalError
from marl_runner.tracking.console import ConsoleTracker
from marl_runner.tracking.jsonl import JsonlTracker
from marl_runner.tracking.options import Trackers, Tracking, default_trackers, wandb_values
from marl_runner.tracking.summary import RunSummary, clock_time
from marl_runner.tracking.wandb import WandbTracker
from marl_runner.types import Completion, Event, JointAction, Node, Progress, Prompt, Sample, Task

ROOT = Path(__file__).parents[1]
STRANGE = "a\u2028b\u0085c\x00d\ud800e\x1b[31mf\r\n[/INST] a[0] [bold]"


def event(env_step: int = 4, kind: str = "train", **metrics: float) -> Event:
    return Event(kind=kind, env_step=env_step, epoch=0, metrics=metrics or {"turn_1/reward_mean": 0.4})


def progress(done: int, elapsed_s: float, reward: float | None = None, num_tasks: int | None = 20) -> Progress:
    return Progress(
        epoch=0,
        num_epochs=2,
        tasks_done=done,
        num_tasks=num_tasks,
        env_step=4 * done,
        generated_tokens=100 * done,
        elapsed_s=elapsed_s,
        reward_mean=reward,
        return_mean=reward,
    )


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().decode("ascii").splitlines()]


def completion(text: str, reference_kl: float | None = None) -> Completion:
    return Completion(text=text, token_ids=(5, 2), finished=True, reference_kl=reference_kl)


def leaf(turn: int, env_step: int, reward: float | None, ended: str = "horizon") -> Node:
    """A node of two agents with one completion each, "x" and "y"."""
    return Node(
        turn=turn,
        prompts_N=(Prompt("to 0", (1,)), Prompt("to 1", (1,))),
        completions_N_K=((completion("x"),), (completion("y", reference_kl=0.25),)),
        joint_actions_J=(JointAction((0, 0), reward),),
        children_J=(),
        env_step=env_step,
        returns_J=(reward,),
        ended=ended,
    )


def sample(agent: int, env_step: int, credited: float, advantage: float) -> Sample:
    return Sample(
        agent=agent,
        turn=0,
        env_step=env_step,
        prompt=Prompt("", ()),
        completions_K=(),
        returns_K=(credited,),
        advantages_K=(advantage,),
    )


# Local files


def test_an_event_is_one_flat_object_on_one_line(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path, rollouts_every=1)
    tracker.log(Event("train", 8, 1, {"turn_1/reward_mean": 0.4, "agent_0/loss": -0.5}))
    tracker.log(Event("eval", 8, 1, {"eval/turn_1/reward_mean": 0.75}))

    assert lines(tmp_path / "metrics.jsonl") == [
        {"kind": "train", "env_step": 8, "epoch": 1, "turn_1/reward_mean": 0.4, "agent_0/loss": -0.5},
        {"kind": "eval", "env_step": 8, "epoch": 1, "eval/turn_1/reward_mean": 0.75},
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_metric_that_is_not_finite_is_refused_by_name_and_nothing_is_written(tmp_path: Path, value: float) -> None:
    tracker = JsonlTracker(tmp_path, rollouts_every=1)
    with pytest.raises(NumericalError, match=r"agent_0/loss is (nan|inf|-inf) at env_step 12"):
        tracker.log(Event("update", 12, 0, {"agent_0/grad_norm": 1.0, "agent_0/loss": value}))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_rollout_is_the_whole_tree_with_returns_and_advantages_in_place(tmp_path: Path) -> None:
    # Root: two joint actions, env_step 2; the first ends early, the second has a child, env_step 3.
    # Agent 1 abstained at the child, so the child has a sample of agent 0 alone.
    root = Node(
        turn=0,
        prompts_N=(Prompt("ask 0", (1, 2)), Prompt("ask 1", (3,))),
        completions_N_K=((completion("a"), completion("b")), (completion("c"), completion("d"))),
        joint_actions_J=(JointAction((0, 0), 1.0, {"tests": 0.75, "syntax": 0.25}), JointAction((1, 1), None)),
        children_J=(leaf(1, 3, 0.5),),
        env_step=2,
        returns_J=(1.0, 0.5),
    )
    samples = [
        Sample(0, 0, 2, root.prompts_N[0], root.completions_N_K[0], (1.0, 0.5), (0.25, -0.25)),
        Sample(1, 0, 2, root.prompts_N[1], root.completions_N_K[1], (1.0, None), (0.0, None)),
        sample(0, 3, credited=0.5, advantage=-1.5),
    ]
    JsonlTracker(tmp_path, rollouts_every=1).rollout(Task("row-7", {"prompt": "p", "n": 3}), root, samples)

    def record(text: str, credited: float | None, advantage: float | None) -> dict:
        return {"text": text, "token_ids": [5, 2], "finished": True, "return": credited, "advantage": advantage}

    child = {
        "turn": 1,
        "env_step": 3,
        "ended": "horizon",
        "prompts": ["to 0", "to 1"],
        "completions": [[record("x", 0.5, -1.5)], [{**record("y", None, None), "reference_kl": 0.25}]],
        "joint_actions": [{"index": [0, 0], "reward": 0.5, "return": 0.5}],
        "children": [],
    }
    tree = {
        "turn": 0,
        "env_step": 2,
        "ended": "",
        "prompts": ["ask 0", "ask 1"],
        "completions": [
            [record("a", 1.0, 0.25), record("b", 0.5, -0.25)],
            [record("c", 1.0, 0.0), record("d", None, None)],
        ],
        "joint_actions": [
            {"index": [0, 0], "reward": 1.0, "return": 1.0, "components": {"tests": 0.75, "syntax": 0.25}},
            {"index": [1, 1], "reward": None, "return": 0.5},
        ],
        "children": [child],
    }
    fields = {"prompt": "p", "n": 3}
    assert lines(tmp_path / "rollouts.jsonl") == [{"uid": "row-7", "fields": fields, "tree": tree}]


def test_a_node_that_ended_before_sampling_does_not_take_its_parents_sample(tmp_path: Path) -> None:
    cut = Node(1, (Prompt("long", (1,)), Prompt("long", (1,))), ((), ()), (), (), env_step=1, ended="overlong_prompt")
    parent = leaf(0, 1, 0.5, ended="")
    root = Node(0, parent.prompts_N, parent.completions_N_K, parent.joint_actions_J, (cut,), 1, (0.5,))
    JsonlTracker(tmp_path, rollouts_every=1).rollout(Task("0", {}), root, [sample(0, 1, 0.5, 0.0)])

    tree = lines(tmp_path / "rollouts.jsonl")[0]["tree"]
    assert tree["completions"][0][0]["return"] == 0.5
    assert tree["children"][0]["completions"] == [[], []]
    assert tree["children"][0]["ended"] == "overlong_prompt"


@pytest.mark.parametrize(("every", "kept"), [(1, "01234"), (3, "03"), (0, "")])
def test_one_rollout_in_so_many_is_written_the_first_included(tmp_path: Path, every: int, kept: str) -> None:
    tracker = JsonlTracker(tmp_path, rollouts_every=every)
    for uid in "01234":
        tracker.rollout(Task(uid, {}), leaf(0, 1, 1.0), [])
    path = tmp_path / "rollouts.jsonl"
    assert "".join(record["uid"] for record in lines(path)) == kept if kept else not path.exists()


def test_strange_text_stays_on_one_ascii_line_and_reads_back_unchanged(tmp_path: Path) -> None:
    root = Node(0, (Prompt(STRANGE, (1,)),), ((completion(STRANGE),),), (JointAction((0,), 1.0),), (), 1)
    JsonlTracker(tmp_path, rollouts_every=1).rollout(Task(STRANGE, {STRANGE: STRANGE}), root, [])

    data = (tmp_path / "rollouts.jsonl").read_bytes()
    assert data.isascii()
    assert data.count(b"\n") == 1
    record = json.loads(data)
    assert record["uid"] == STRANGE
    assert record["fields"] == {STRANGE: STRANGE}
    assert record["tree"]["prompts"] == [STRANGE]
    assert record["tree"]["completions"][0][0]["text"] == STRANGE


def test_task_fields_that_json_cannot_hold_are_written_as_text(tmp_path: Path) -> None:
    fields = {"gap": float("nan"), "path": Path("a/b"), "pairs": {(1, 2): 3}, "plain": [1, None, True]}
    JsonlTracker(tmp_path, rollouts_every=1).rollout(Task("0", fields), leaf(0, 1, 1.0), [])
    assert lines(tmp_path / "rollouts.jsonl")[0]["fields"] == {
        "gap": "nan",
        "path": "a/b",
        "pairs": "{(1, 2): 3}",
        "plain": [1, None, True],
    }


def test_a_tree_with_a_nan_reward_is_refused_by_name(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path, rollouts_every=1)
    with pytest.raises(NumericalError, match="reward is nan at env_step 9"):
        tracker.rollout(Task("0", {}), leaf(0, 9, float("nan")), [])
    with pytest.raises(NumericalError, match="advantage is nan at env_step 9"):
        tracker.rollout(Task("0", {}), leaf(0, 9, 1.0), [sample(0, 9, 1.0, float("nan"))])
    assert not (tmp_path / "rollouts.jsonl").exists()


@pytest.mark.parametrize("torn", [b'{"kind": "tra', b"\x00" * 70_000, b"x" * 200_000])
def test_a_line_torn_by_a_kill_is_cut_off_before_the_next_one(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonlTracker(tmp_path, rollouts_every=1).log(event(4))
    path.write_bytes(path.read_bytes() + torn)
    JsonlTracker(tmp_path, rollouts_every=1).log(event(8))
    assert [record["env_step"] for record in lines(path)] == [4, 8]


def test_a_file_that_is_one_torn_line_starts_again(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"kind"')
    JsonlTracker(tmp_path, rollouts_every=1).log(event(4))
    assert [record["env_step"] for record in lines(tmp_path / "metrics.jsonl")] == [4]


def test_a_full_disk_is_an_error_with_path_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    # {"kind": "train", "env_step": 4, "epoch": 0, "a": 0.5} and a newline: 55 bytes.
    with pytest.raises(OSError, match="No space left on device: cannot append 55 bytes") as raised:
        JsonlTracker(tmp_path, rollouts_every=1).log(event(4, a=0.5))
    assert raised.value.filename == str(path)


# Console


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_terminal_lines_are_plain_and_rare(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    clock = Clock()
    tracker = ConsoleTracker(clock=clock)
    for done in range(21):
        tracker.progress(progress(done, elapsed_s=3.0 * done, reward=0.5))
        clock.now_s += 3.0
    shown = capsys.readouterr().out
    # 3 s apart and at most one line each 10 s: reports 0, 4, 8, 12, 16, 20.
    assert [line.split()[1] for line in shown.splitlines()] == ["0/20", "4/20", "8/20", "12/20", "16/20", "20/20"]
    tracker.close("completed")
    shown += capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert shown.count("20/20") == 1


def test_the_last_progress_is_shown_at_close_if_it_was_too_soon_before() -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(Console(file=out), clock=Clock())
    for done in range(1, 4):
        tracker.progress(progress(done, elapsed_s=1.0 * done))
    tracker.close("failed")
    tasks = [line.split()[1] for line in out.getvalue().splitlines() if line.startswith("task")]
    assert tasks == ["1/20", "3/20"]
    assert "run failed" in out.getvalue()


def test_the_end_names_the_run_folder_as_it_is_reached_from_here(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    ConsoleTracker(Console(file=out), folder=tmp_path / "outputs" / "run").close("completed")
    assert out.getvalue().splitlines() == ["run completed", f"  {'run folder':<26}outputs/run"]


def test_a_plain_line_is_never_wrapped_and_holds_every_number() -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(Console(file=out, width=20), clock=Clock())
    tracker.progress(progress(0, elapsed_s=0.0))
    tracker.progress(progress(5, elapsed_s=50.0, reward=0.4125))
    tracker.close("completed")
    # 500 tokens in 50 s; 15 of 20 tasks left at 10 s each.
    expected = "task 5/20  epoch 1/2  reward 0.412  return 0.412  10 tokens/s  0:02:30 left"
    assert out.getvalue().splitlines()[:2] == ["task 0/20  epoch 1/2", expected]


def test_a_terminal_shows_one_live_line_and_a_final_table() -> None:
    out = io.StringIO()
    clock = Clock()
    tracker = ConsoleTracker(Console(file=out, force_terminal=True, width=100, _environ={"TERM": "xterm"}), clock=clock)
    for done in range(1, 6):
        tracker.progress(progress(done, elapsed_s=10.0 * done, reward=0.1 * done))
        clock.now_s += 1.0
    live = out.getvalue()
    assert "\n" not in live
    assert "task 5/20" in live
    assert "reward 0.500" in live
    tracker.close("completed")
    final = out.getvalue()[len(live) :]
    assert "run completed" in final
    assert "reward at the start" in final
    # The cursor, hidden by the live line, is shown again.
    assert final.rindex("\x1b[?25h") > 0


def test_evaluations_print_one_short_line_with_every_turn() -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(Console(file=out))
    rewards = {"eval/turn_1/reward_mean": 0.4124, "eval/turn_2/reward_mean": 0.75, "eval/turn_1/expected_return": 9.0}
    tracker.log(Event("eval", 128, 0, rewards))
    tracker.log(event(128))
    assert out.getvalue() == "eval  env_step 128  turn 1 reward 0.412  turn 2 reward 0.750\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_brackets_and_emoji_names_print_as_they_are(terminal: bool) -> None:
    text = "[/INST] a[0] [bold] :smile: [link=x]/runs/[3]"
    out = io.StringIO()
    tracker = ConsoleTracker(Console(file=out, force_terminal=terminal, width=120, _environ={"TERM": "xterm"}))
    tracker.log(Event("eval", 1, 0, {text: 0.5}))
    tracker.progress(progress(1, elapsed_s=1.0, reward=0.5))
    tracker.close(text)
    assert f"eval  env_step 1  {text} 0.500" in out.getvalue()
    # On a terminal the title is styled and wrapped to the table, so only its own words are looked for.
    assert all(word in out.getvalue() for word in f"run {text}".split())


def test_prompts_and_completions_are_never_printed() -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(Console(file=out))
    tracker.rollout(Task("uid", {"prompt": "secret"}), leaf(0, 1, 1.0), [])
    assert out.getvalue() == ""


def test_a_console_tracker_can_be_pickled_before_it_has_shown_anything() -> None:
    copy = pickle.loads(pickle.dumps(ConsoleTracker()))
    copy.close("completed")


def test_the_final_table_is_start_end_best_and_totals() -> None:
    summary = RunSummary()
    # 20 tasks: windows of 20 // 10 = 2 reports. Means: 0.2, 0.5, 0.7, 0.4.
    for done, reward in enumerate([0.1, 0.3, 0.7, 0.7, 0.1], start=1):
        summary.add_progress(progress(done, elapsed_s=5.0 * done, reward=reward))
    summary.add_eval(Event("eval", 0, 0, {"eval/turn_1/reward_mean": 0.25}))
    summary.add_eval(Event("eval", 20, 0, {"eval/turn_1/reward_mean": 0.625}))
    assert summary.rows() == [
        ("reward at the start", "0.200"),
        ("reward at the end", "0.400"),
        ("best reward", "0.700"),
        ("evaluation reward, turn 1", "0.250 -> 0.625"),
        ("env steps", "20"),
        ("generated tokens", "500"),
        ("tokens/s", "20"),
        ("elapsed", "0:00:25"),
    ]


def test_a_run_of_one_report_has_that_reward_at_start_end_and_best() -> None:
    summary = RunSummary()
    summary.add_progress(progress(1, elapsed_s=0.0, reward=0.3, num_tasks=None))
    assert [value for name, value in summary.rows() if "reward" in name] == ["0.300", "0.300", "0.300"]
    assert summary.line() == "task 1  epoch 1/2  reward 0.300  return 0.300"


def test_time_left_of_a_resumed_run_counts_only_tasks_done_since_it_resumed() -> None:
    summary = RunSummary()
    summary.add_progress(progress(10, elapsed_s=0.0))
    assert summary.time_left_s() is None
    summary.add_progress(progress(12, elapsed_s=60.0))
    assert summary.time_left_s() == 240.0  # 8 tasks at 30 s
    assert clock_time(3725.4) == "1:02:05"


# Options


def settings(**changes: object) -> Tracking:
    values: dict = {
        "console": False,
        "rollouts_every": 1,
        "wandb": "off",
        "wandb_project": "tests",
        "wandb_entity": None,
        "wandb_group": None,
        "wandb_name": None,
        "wandb_tags": [],
        "wandb_timeout_s": 20.0,
    }
    return Tracking(**{**values, **changes})


@pytest.mark.parametrize(("option", "mode"), [("local", "off"), ("wandb", "online"), ("wandb_offline", "offline")])
def test_every_option_file_composes_to_a_whole_tracking(option: str, mode: str, tmp_path: Path) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        tracking = instantiate(compose(overrides=[f"+tracking={option}"]).tracking)
        assert instantiate(compose(overrides=[f"+tracking={option}", "tracking.wandb=off"]).tracking).wandb == "off"
    assert isinstance(tracking, Tracking)
    assert tracking.wandb == mode
    trackers = tracking(tmp_path, {})
    wanted = [JsonlTracker, ConsoleTracker] + ([] if mode == "off" else [WandbTracker])
    assert [type(tracker) for tracker in trackers] == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wandb": "onlin"}, "tracking.wandb must be off, online or offline, got 'onlin'; nearest: online"),
        ({"wandb": "False"}, 'write "off" with quotes'),
        ({"rollouts_every": -1}, "tracking.rollouts_every must be >= 0 (0 writes none), got -1"),
        ({"wandb_timeout_s": 0.0}, "tracking.wandb_timeout_s must be > 0 and finite, got 0.0"),
        ({"wandb_timeout_s": float("nan")}, "tracking.wandb_timeout_s must be > 0 and finite, got nan"),
        ({"wandb_project": "a/b"}, "tracking.wandb_project must have 1 to 128 characters"),
        ({"wandb_project": ""}, "got ''"),
        ({"wandb_tags": ["ok", "t" * 65]}, "tracking.wandb_tags must have 1 to 64 characters each"),
    ],
)
def test_values_out_of_range_are_refused_by_key_and_value(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(**changes)
    assert message in str(raised.value)


class Spy:
    def __init__(self, seen: list, name: str, error: Exception | None = None) -> None:
        self.seen, self.name, self.error = seen, name, error

    def log(self, event: Event) -> None:
        self.seen.append((self.name, "log"))

    def progress(self, progress: Progress) -> None:
        self.seen.append((self.name, "progress"))

    def rollout(self, task: Task, root: Node, samples: object) -> None:
        self.seen.append((self.name, "rollout"))

    def close(self, status: str) -> None:
        self.seen.append((self.name, status))
        if self.error is not None:
            raise self.error


def test_every_call_reaches_every_tracker_in_order() -> None:
    seen: list = []
    trackers = Trackers([Spy(seen, "a"), Spy(seen, "b")])
    trackers.log(event())
    trackers.progress(progress(1, 1.0))
    trackers.rollout(Task("0", {}), leaf(0, 1, 1.0), [])
    trackers.close("completed")
    calls = ["log", "progress", "rollout", "completed"]
    assert seen == [(name, call) for call in calls for name in "ab"]


def test_a_tracker_that_cannot_close_does_not_keep_the_others_open() -> None:
    seen: list = []
    trackers = Trackers([Spy(seen, "a", OSError("disk full")), Spy(seen, "b"), Spy(seen, "c")])
    with pytest.raises(OSError, match="disk full"):
        trackers.close("failed")
    assert seen == [("a", "failed"), ("b", "failed"), ("c", "failed")]


def test_a_trainer_made_in_python_writes_files_and_makes_its_folder_only_then(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    trackers = default_trackers(tmp_path / "new" / "run", None, {})
    assert not (tmp_path / "new").exists()
    trackers.log(event(4))
    trackers.close("completed")
    assert [record["env_step"] for record in lines(tmp_path / "new" / "run" / "metrics.jsonl")] == [4]


def test_an_unknown_key_of_wandb_config_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dir, config_sections, got 'projct'; nearest: project"):
        default_trackers(tmp_path, {"projct": "x"}, {})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"tags": "abc"}, "tags must be a list, got 'abc'"),
        ({"tags": [1]}, r"tags must be texts, got \[1\]"),
        ({"config_sections": [1]}, r"config_sections must be a mapping, got \[1\]"),
        ({"project": 5}, "project must be text, got 5"),
        (False, "must be a mapping or None, got False"),
    ],
)
def test_a_value_of_wandb_config_that_is_of_another_kind_is_refused(tmp_path: Path, value, said) -> None:
    with pytest.raises(ConfigError, match=f"wandb_config {said}"):
        default_trackers(tmp_path, value, {})


def test_none_in_a_wandb_config_is_as_good_as_absent(tmp_path: Path) -> None:
    keys = ("project", "entity", "name", "run_name", "group", "tags", "mode", "dir", "config_sections")
    assert wandb_values(dict.fromkeys(keys)) == {}


# Weights & Biases


@pytest.fixture
def wandb_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run folder, no login, no settings of the person who runs the tests, and no wandb process left behind."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    folder = tmp_path / "run"
    folder.mkdir()
    yield folder
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()


def start(folder: Path, mode: str = "offline", **changes: object) -> WandbTracker:
    values: dict = {"project": "tests", "entity": None, "group": "sweep-1", "name": "run [bold] a[0]", "tags": ["t"]}
    values |= {"config": {"trainer": {"num_turns": 2}}, "init_timeout_s": 20.0}
    return WandbTracker(folder, mode, **{**values, **changes})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    mine = [record for record in caplog.records if record.name.startswith("marl_runner.tracking.wandb")]
    return [record.getMessage() for record in mine if record.levelno >= logging.WARNING]


def wandb_records(folder: Path) -> list:
    """The records of the one offline run in `folder`: a 7-byte header, then (crc, length, kind) before each."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    # wandb writes the end of the file after finish() has returned.
    wandb.teardown()
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, records = path.read_bytes(), 7, []
    while at < len(data):
        _, length, _ = struct.unpack("<IHB", data[at : at + 7])
        records.append(wandb_internal_pb2.Record.FromString(data[at + 7 : at + 7 + length]))
        at += 7 + length
    return records


def test_an_offline_run_keeps_every_row_and_needs_no_login(wandb_alone: Path, caplog) -> None:
    tracker = start(wandb_alone)
    for env_step, reward in [(4, 0.25), (8, 0.5), (2, 0.75)]:
        tracker.log(Event("train", env_step, 1, {"turn_1/reward_mean": reward}))
    tracker.close("completed")
    assert warnings(caplog) == []

    records = wandb_records(wandb_alone)
    histories = [r.history for r in records if r.WhichOneof("record_type") == "history"]
    rows = [{(i.key or i.nested_key[0]): json.loads(i.value_json) for i in history.item} for history in histories]
    seen = [(row["env_step"], row["epoch"], row["turn_1/reward_mean"]) for row in rows]
    assert seen == [(4, 1, 0.25), (8, 1, 0.5), (2, 1, 0.75)]
    globs = [(r.metric.glob_name, r.metric.step_metric) for r in records if r.WhichOneof("record_type") == "metric"]
    assert ("*", "env_step") in globs
    run = next(r.run for r in records if r.WhichOneof("record_type") == "run")
    assert (run.run_group, run.display_name, list(run.tags)) == ("sweep-1", "run [bold] a[0]", ["t"])
    assert ("trainer", '{"num_turns":2}') in [(update.key, update.value_json) for update in run.config.update]
    assert [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"] == [0]


def test_jobs_get_ids_of_their_own_and_only_a_resumed_one_keeps_its_id(wandb_alone: Path) -> None:
    def run(folder: Path, resumed: bool = False) -> list[str]:
        folder.mkdir(exist_ok=True)
        tracking = settings(wandb="offline")
        trackers = Trackers(tracking(folder, {}, group="sweep-1", resumed=resumed))
        trackers.log(event())
        trackers.close("preempted")
        return sorted(path.stem for path in folder.glob("wandb/*run-*/run-*.wandb"))

    first, second = run(wandb_alone / "0"), run(wandb_alone / "1")
    assert len(first) == len(second) == 1
    assert first != second
    assert run(wandb_alone / "0", resumed=True) == first * 2
    assert len(set(run(wandb_alone / "0", resumed=False))) == 2


def test_online_without_a_login_goes_offline_with_one_line(wandb_alone: Path, caplog) -> None:
    tracker = start(wandb_alone, mode="online")
    tracker.log(event(4))
    tracker.close("completed")
    assert len(warnings(caplog)) == 1
    assert "going offline" in warnings(caplog)[0]
    assert "WANDB_API_KEY" in warnings(caplog)[0]
    assert any(record.WhichOneof("record_type") == "history" for record in wandb_records(wandb_alone))


def test_online_without_a_network_goes_offline_in_the_time_given(wandb_alone: Path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    tracker = start(wandb_alone, mode="online", init_timeout_s=1.0)
    tracker.log(event(4))
    tracker.close("completed")
    assert len(warnings(caplog)) == 1
    assert "going offline" in warnings(caplog)[0]
    assert list(wandb_alone.glob("wandb/offline-run-*"))


def test_a_start_that_fails_in_every_way_leaves_training_without_wandb(wandb_alone: Path, caplog) -> None:
    tracker = start(wandb_alone, project="no/slash")
    for env_step in range(3):
        tracker.log(event(env_step))
    tracker.close("completed")
    assert len(warnings(caplog)) == 1
    assert "going on without it" in warnings(caplog)[0]


def test_a_trainer_made_in_python_names_its_wandb_run(wandb_alone: Path) -> None:
    asked = {"mode": "offline", "project": "mine", "group": "g", "run_name": "n", "config_sections": {"reward": "r"}}
    trackers = default_trackers(wandb_alone / "run", {**asked, "dir": str(wandb_alone)}, {"seed": 5})
    trackers.log(event(4))
    trackers.close("failed")
    records = wandb_records(wandb_alone)
    run = next(r.run for r in records if r.WhichOneof("record_type") == "run")
    assert (run.project, run.run_group, run.display_name) == ("mine", "g", "n")
    assert [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"] == [1]


def test_a_start_that_hangs_is_given_up(wandb_alone: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr("marl_runner.tracking.wandb._GRACE_S", 0.0)
    monkeypatch.setattr("marl_runner.tracking.wandb.start_run", lambda request: signal.pause())
    monkeypatch.setattr("marl_runner.tracking.wandb.release_service", lambda: None)
    tracker = start(wandb_alone, init_timeout_s=0.05)
    tracker.log(event(4))
    tracker.close("completed")
    assert warnings(caplog) == ["wandb did not start within 0.1 s; going on without it"]


JOB = """
import logging, os, signal, sys
from pathlib import Path
from marl_runner.tracking.options import Tracking
from marl_runner.types import Event

logging.basicConfig(level=logging.WARNING)
mode, act = sys.argv[2:]
trackers = Tracking(False, 1, mode, "tests", None, None, None, [], 0.5)(Path(sys.argv[1]), {"a": 1})
for tracker in trackers:
    tracker.log(Event("train", 4, 0, {"a": 0.5}))
if act == "freeze":
    for stat in Path("/proc").glob("[0-9]*/stat"):
        name, parent = stat.read_text().partition("(")[2].rsplit(")", 1)
        if name == "wandb-core" and parent.split()[1] == str(os.getpid()):
            os.kill(int(stat.parent.name), signal.SIGSTOP)
            print("frozen", stat.parent.name, flush=True)
for tracker in trackers:
    tracker.close("completed")
print("modules", sorted({"wandb", "torch", "transformers"} & set(sys.modules)), flush=True)
"""


def job(folder: Path, mode: str, act: str = "") -> str:
    """What the job printed; to a file, because a pipe stays open for as long as a wandb process that inherits it."""
    command = [sys.executable, "-c", JOB, str(folder), mode, act]
    shown = folder / "shown.txt"
    with shown.open("wb") as file:
        subprocess.run(command, stdout=file, stderr=file, timeout=30, env=job_env(), check=True)
    return shown.read_text()


def job_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def test_wandb_and_torch_are_not_imported_when_wandb_is_off(wandb_alone: Path) -> None:
    assert job(wandb_alone, "off") == "modules []\n"


def test_a_frozen_wandb_process_holds_up_neither_the_end_nor_the_exit(wandb_alone: Path) -> None:
    shown = job(wandb_alone, "offline", "freeze")
    frozen = [int(line.split()[1]) for line in shown.splitlines() if line.startswith("frozen")]
    for pid in frozen:
        os.kill(pid, signal.SIGKILL)
    assert len(frozen) == 1
    # On a busy machine it may already have taken too long to start; the job has ended in bounded time either way.
    assert "wandb did not finish within 0.5 s" in shown or "wandb did not start within" in shown


def test_a_missing_login_is_never_asked_for_on_a_terminal(wandb_alone: Path) -> None:
    screen, terminal = pty.openpty()
    command = [sys.executable, "-c", JOB, str(wandb_alone), "online", ""]
    child = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=job_env())
    os.close(terminal)
    try:
        assert child.wait(timeout=30) == 0
    finally:
        child.kill()
    shown = os.read(screen, 65536).decode()
    os.close(screen)
    assert shown.count("WARNING") == 1
    assert "going offline" in shown
    assert "account" not in shown
