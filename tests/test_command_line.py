"""What `marl-train` does with what is typed: exit codes, sweeps, signals, and nothing heavy before it is needed.

1. --help, --cfg job, errors and the composition of sweeps never import torch.
2. Exit code 0 is a finished run, 1 a failed one, 2 a wrong configuration or wrong data, 128 + n a signal.
3. A wrong command ends in one line, before a folder is made; a failed run leaves a summary that says why.
4. What is printed or recorded as a command pastes back to the same configuration.
5. A sweep is checked as a whole before its first job, warns once, and hides no failure.
6. The objective is the reward of the last evaluation, or of the last tenth of training without one.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.types import Quote, QuotedString

from commands import TINY, marl_train, model_folder, refused, summary
from marl_runner import cli

MARL_TRAIN = str(Path(sys.executable).parent / "marl-train")
STRANGE = [
    "a=b:c",
    "{x}: [1]",
    "$HOME `ls`",
    'it\'s "so"',
    "né 日本",
    " spaces  inside ",
    "back\\slash",
    "a,b",
    "~*?!#&;|<>()",
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def quoted(value: str) -> str:
    """A value as Hydra reads it back."""
    return QuotedString(value, Quote.double).with_quotes()


def shown(*arguments: str) -> dict:
    """The configuration that a command would run."""
    ended = marl_train(*arguments, "--cfg", "job")
    assert (ended.code, ended.err) == (0, "")
    return yaml.safe_load(ended.out)


def reward(body: str) -> tuple[str, str]:
    """The options for a reward function with this body, in a file of its own."""
    Path("rewards.py").write_text(f"import os, signal, sys, time\ncalls = []\n\ndef score(first, second):\n{body}")
    return "reward=python", "reward.function=rewards.py:score"


COUNTING = "    calls.append(first)\n    return [float(len(calls))]\n"
"""A reward of 1 at the first call, 2 at the second, and so on."""

# --- nothing heavy

LIGHT = """
import sys
import marl_runner, marl_runner.options, marl_runner.settings, marl_runner.types
from marl_runner import MAGRPOConfig, RewardProcessors, register_reward, cli
assert marl_runner.__version__
for arguments in (
    ["--help"],
    ["--cfg", "job", "experiment=smollm2_story"],
    ["trainer.num_generatons=4"],
    ["+trainer.num_generatons=4"],
    ["reward=python", "reward.function=nowhere.py:f"],
    ["-m", "advantage_mode=raw,mean", "trainer.num_turns=2"],
):
    sys.argv = ["marl-train", *arguments]
    try:
        cli.command()
    except SystemExit:
        pass
    heavy = {"torch", "transformers", "datasets", "wandb", "pandas"} & set(sys.modules)
    assert not heavy, (arguments, heavy)
"""


def test_help_errors_and_sweep_composition_never_import_torch():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "advantage_mode: max, mean, raw, rloo" in done.stdout  # of --help


def test_the_names_of_the_package_are_there_when_used():
    import marl_runner

    for name in set(marl_runner.__all__) - {"__version__"}:
        assert getattr(marl_runner, name).__name__ == name
    assert {"MAGRPOTrainer", "MAReMaxConfig", "register_reward"} <= set(dir(marl_runner))
    with pytest.raises(AttributeError, match="module 'marl_runner' has no attribute 'MAGPROTrainer'"):
        marl_runner.MAGPROTrainer  # noqa: B018


def test_a_command_leaves_the_process_as_it_was(monkeypatch):
    monkeypatch.delenv(cli.FULL_ERROR, raising=False)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert marl_train("seed=two").code == 2
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert cli.FULL_ERROR not in os.environ
    monkeypatch.setenv(cli.FULL_ERROR, "0")
    assert marl_train("seed=two").code == 2
    assert os.environ[cli.FULL_ERROR] == "0"


def test_the_full_trace_is_there_for_who_asks_for_it(monkeypatch):
    monkeypatch.setenv(cli.FULL_ERROR, "1")
    with pytest.raises(Exception, match=r"trainer\.num_turns=two"):
        marl_train("trainer.num_turns=two")


# --- exit codes


def test_a_finished_run_ends_with_0_and_says_where_it_is():
    ended = marl_train(*TINY)
    assert (ended.code, ended.err) == (0, "")
    [folder] = Path("outputs").glob("*/*")
    assert f"training MAGRPO in {folder.absolute()}" in ended.out
    assert "run completed" in ended.out
    assert summary(folder)["status"] == "completed"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["+trainer.num_generatons=4"], "unknown key trainer.num_generatons; nearest: trainer.num_generations"),
        (["trainer.num_turns=2"], "trainer.num_turns=2 needs a transition: "),
        (["agents=null"], "agents=null: agents takes the name of one option (valid: pretrained, smollm2, tiny)"),
        (["experiment=null"], "experiment=null: experiment takes the name of one option (valid: arxiv_qwen3, "),
        (["+hydra.foo=1"], "unknown key hydra.foo; nearest: hydra."),
        (["--config-dir=nowhere"], "Additional config directory '"),
        (["agents=pretrained", "agents.model=a,b"], "agents.model=a,b is several values: add -m to run each, or quo"),
        (["reward=python", "reward.function=nowhere.py:f"], "reward.function=nowhere.py:f: no file nowhere.py (looked"),
        (["-m", "trainer.num_turns=1,2"], "trainer.num_turns=2 needs a transition: "),
        (["-m", "advantage_mode=raw,loo"], "advantage_mode has no option 'loo'; nearest: rloo (valid: "),
        (["-m", "seed="], "seed must be an integer, got nothing"),
        (["-m", "seed=glob(zz*)"], "the sweep seed=glob(zz*) has no values, so there is nothing to run"),
        (["-m", "seed=1,2", "hydra.sweep.subdir=x"], "jobs 0 and 1 would share the folder /"),
    ],
)
def test_a_wrong_command_ends_with_2_and_one_line_before_anything_is_made(arguments, sentence):
    assert refused(*arguments).startswith(sentence)


def test_a_run_folder_that_cannot_be_made_ends_with_2_and_one_line():
    Path("file").touch()
    assert refused(*TINY, "hydra.run.dir=file") == "[Errno 17] File exists: 'file'"
    assert refused(*TINY, "hydra.run.dir=file/run") == "[Errno 20] Not a directory: 'file/run'"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "dataset.path=rows.jsonl does not exist"),
        ('{"question": "a"}\n', "set dataset.columns.prompt=question"),
    ],
)
def test_wrong_data_end_with_2_and_one_line_and_a_summary_that_says_so(text, sentence):
    if text is not None:
        Path("rows.jsonl").write_text(text)
    ended = marl_train("dataset=files", "dataset.path=rows.jsonl", *TINY[1:], "hydra.run.dir=run")
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert sentence in ended.err
    assert summary("run")["status"] == "failed"
    assert summary("run")["error"]["kind"] == "DataError"
    assert sentence in summary("run")["error"]["message"]


def test_a_failing_reward_ends_with_1_and_one_line_and_a_summary_with_what_was_done():
    body = "    calls.append(1)\n    if len(calls) == 4:\n        raise KeyError('lost')\n    return [0.5]\n"
    ended = marl_train(*TINY, "trainer.rollout_buffer_size=1", *reward(body), "hydra.run.dir=run")
    # One call to evaluate the one row, two for the joint actions of task 1, and the fourth fails.
    said = (
        "reward rewards.py:score raised KeyError: 'lost' at rewards.py:7 (task 2, turn 1, joint action 0; completions "
    )
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert ended.err.startswith(f"marl-train: {said}")
    trace = Path("run/train.log").read_text()
    assert trace.count("Traceback (most recent call last)") == 2  # the reward's own, and what was made of it
    assert 'rewards.py", line 7, in score' in trace
    facts = summary("run")
    assert (facts["status"], facts["algorithm"], facts["error"]["kind"]) == ("failed", "MAGRPO", "RewardError")
    assert facts["error"]["message"].startswith(said)
    assert {name: facts["counts"][name] for name in ("tasks", "env_steps", "reward_calls")} == {
        "tasks": 1,
        "env_steps": 2,
        "reward_calls": 4,
    }


def test_an_exit_inside_the_run_is_a_failure_though_its_code_is_0():
    ended = marl_train(*TINY, *reward("    sys.exit(0)\n"), "hydra.run.dir=run")
    assert (ended.code, ended.err) == (1, "marl-train: something in the run called exit(0)\n")
    assert summary("run")["status"] == "failed"


def test_a_fault_of_the_program_keeps_its_trace(monkeypatch):
    # A ValueError while training is no wrong configuration, though Hydra raises some for wrong arguments too.
    def broken(*_: object) -> None:
        raise ValueError("out of the blue")

    monkeypatch.setattr("marl_runner.loop.TrainingLoop.run", broken)
    with pytest.raises(ValueError, match="out of the blue"):
        marl_train(*TINY, "hydra.run.dir=run")
    assert summary("run")["error"] == {"kind": "ValueError", "message": "out of the blue"}


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_the_run_as_preempted_though_a_reward_swallows_exceptions(name, code):
    body = f"    try:\n        os.kill(os.getpid(), signal.{name})\n        time.sleep(60)\n"
    body += "    except Exception:\n        pass\n    return [0.5]\n"
    ended = marl_train(*TINY, *reward(body), "hydra.run.dir=run")
    assert (ended.code, ended.err) == (code, f"marl-train: stopped by {name}\n")
    assert summary("run")["status"] == "preempted"
    assert summary("run")["error"] == {"kind": "Stopped", "message": name}


@pytest.mark.slow
@pytest.mark.parametrize("where", [[], ["reward.num_workers=2", "trainer.eval_interval=0"]], ids=["alone", "workers"])
def test_sigterm_from_outside_ends_a_sleeping_reward_and_every_process_within_seconds(where):
    options = [*reward("    open('started', 'w').close()\n    time.sleep(120)\n"), *where]
    run = subprocess.Popen(
        [MARL_TRAIN, *TINY, *options, "hydra.run.dir=run"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_until(Path("started").exists, seconds=90)
        stopped = time.monotonic()
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=30)
        assert time.monotonic() - stopped < 10
        assert (run.returncode, err) == (143, "marl-train: stopped by SIGTERM\n")
        assert summary("run")["status"] == "preempted"
        with pytest.raises(ProcessLookupError):
            os.killpg(run.pid, 0)
    finally:
        if run.poll() is None:
            run.kill()


def wait_until(true, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


# --- quoting


def test_a_comma_is_a_sweep_with_m_and_one_value_in_quotes():
    assert shown("agents=pretrained", 'agents.model="a,b"')["agents"]["model"] == "a,b"
    # Slashes and 300 characters, which no folder of the sweep may be named after.
    first, second = (model_folder(Path(f"{name * 100}/{name * 100}/{name * 100}")) for name in "xy")
    short = ["debug=step", "agents=pretrained", "hydra.sweep.dir=sweep"]
    ended = marl_train("-m", *short, f"agents.model={first},{second}")
    assert (ended.code, ended.err) == (0, "")
    assert {path.name for path in Path("sweep").iterdir()} == {"0", "1", "multirun.yaml"}
    models = [yaml.safe_load(Path("sweep", job, "config.yaml").read_text())["agents"]["model"] for job in "01"]
    assert models == [first, second]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("a b,c\\d", "agents.model=a b,c\\d is several values: add -m to run each, or quote it as one: "),
        ("it's,so", "cannot read the override agents.model=it's,so: quote its text: "),
        ('{say "$né,日本"', 'cannot read the override agents.model={say "$né,日本": quote its text: '),
    ],
)
def test_text_that_must_be_quoted_is_told_how_and_pastes_back(value, sentence):
    told = refused("agents=pretrained", f"agents.model={value}")
    assert told.startswith(sentence)
    assert shown("agents=pretrained", *shlex.split(told.removeprefix(sentence)))["agents"]["model"] == value


def test_the_recorded_command_of_a_run_pastes_back_to_its_configuration():
    tags = "[" + ",".join(quoted(value) for value in STRANGE) + "]"
    typed = [*TINY, f"tracking.wandb_tags={tags}", f"tracking.wandb_name={quoted(STRANGE[3])}"]
    assert marl_train(*typed, "hydra.run.dir=run").code == 0
    program, *arguments = shlex.split(summary("run")["command"])
    assert (program, arguments) == ("marl-train", [*typed, "hydra.run.dir=run"])
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert config["tracking"]["wandb_tags"] == STRANGE
    assert shown(*arguments) == config


def test_the_recorded_command_of_a_job_is_a_run_of_that_job_alone():
    Path("my_conf/trainer").mkdir(parents=True)
    Path("my_conf/trainer/mine.yaml").write_text("num_turns: 1\ntemperature: 0.5\n")
    names = ",".join(quoted(value) for value in STRANGE[:2])
    sweep = ["hydra.sweep.dir=sweep", "trainer=mine", f"tracking.wandb_name={names}"]
    # What a job knows of itself can be named in its configuration.
    of_the_job = ["tracking.wandb_group=job-${hydra:job.num}-of-${hydra:runtime.choices.trainer}"]
    assert marl_train("--config-dir=my_conf", "-m", *TINY, *sweep, *of_the_job).code == 0
    for number, name in enumerate(STRANGE[:2]):
        program, *arguments = shlex.split(summary(f"sweep/{number}")["command"])
        config = yaml.safe_load(Path("sweep", str(number), "config.yaml").read_text())
        assert program == "marl-train"
        assert (config["tracking"]["wandb_name"], config["trainer"]["temperature"]) == (name, 0.5)
        assert config["tracking"]["wandb_group"] == f"job-{number}-of-mine"
        again = shown(*arguments)
        assert again["tracking"].pop("wandb_group") == "job-${hydra:job.num}-of-${hydra:runtime.choices.trainer}"
        del config["tracking"]["wandb_group"]
        assert again == config


# --- sweeps


def test_a_sweep_over_advantage_modes_runs_the_four_algorithms():
    ended = marl_train("-m", *TINY, "advantage_mode=raw,mean,rloo,max", "trainer.advantage_normalization=false")
    assert (ended.code, ended.err) == (0, "")
    [sweep] = Path("outputs/sweeps").glob("*/*")
    assert {path.name for path in sweep.iterdir()} == {"0", "1", "2", "3", "multirun.yaml"}
    summaries = [summary(sweep / str(number)) for number in range(4)]
    assert [facts["algorithm"] for facts in summaries] == ["MAREINFORCE", "MAGRPO", "MARLOO", "MAReMax"]
    assert [facts["status"] for facts in summaries] == ["completed"] * 4


def test_modes_that_normalisation_makes_equal_are_warned_of_once_for_a_sweep_and_once_for_a_run():
    sweep = marl_train("-m", *TINY, "advantage_mode=raw,max")
    assert (sweep.out + sweep.err).count("NO DIFFERENCE") == 1
    assert sweep.err.startswith("WARNING  advantage_mode=raw makes NO DIFFERENCE here: ")
    run = marl_train(*TINY, "advantage_mode=rloo")
    assert (run.out + run.err).count("NO DIFFERENCE") == 1


def test_a_failing_job_fails_the_sweep_and_leaves_the_other_jobs_alone():
    Path("good.py").write_text("def score(first, second):\n    return [0.5]\n")
    Path("bad.py").write_text("def score(first, second):\n    raise OSError('gone')\n")
    ended = marl_train(
        "-m", *TINY, "reward=python", "reward.function=bad.py:score,good.py:score",
        "hydra.sweep.dir=sweep",
    )  # fmt: skip
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert ended.err.splitlines()[-1].startswith("marl-train: reward bad.py:score raised OSError: gone at bad.py:2 (")
    assert [summary(f"sweep/{job}")["status"] for job in range(2)] == ["failed", "completed"]


@pytest.mark.slow
def test_a_job_that_fails_under_submitit_fails_the_sweep_and_says_so_in_its_summary():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    Path("good.py").write_text("def score(first, second):\n    return [0.5]\n")
    Path("bad.py").write_text("def score(first, second):\n    raise OSError('gone')\n")
    arguments = ["reward=python", "reward.function=bad.py:score,good.py:score", "hydra.sweep.dir=sweep"]
    done = subprocess.run(
        [MARL_TRAIN, "-m", *TINY, "hydra/launcher=submitit_local", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    assert "raised OSError: gone" in done.stderr
    bad, good = summary("sweep/0"), summary("sweep/1")
    assert (bad["status"], good["status"]) == ("failed", "completed")
    program, *arguments = shlex.split(good["command"])
    assert program == "marl-train"
    assert shown(*arguments) == yaml.safe_load(Path("sweep/1/config.yaml").read_text())


# --- the objective


@pytest.mark.parametrize(
    ("overrides", "objective"),
    [
        # Call 1 evaluates, tasks 1 and 2 take calls 2-3 and 4-5, call 6 evaluates at the end.
        ([], 6.0),
        # Task 2 takes calls 3 and 4, and is the last tenth of 2 tasks.
        (["trainer.eval_interval=0"], 3.5),
        # The last tenth of 20 tasks is tasks 19 and 20: calls 37 to 40.
        (["dataset.eval_fraction=0", "dataset.max_tasks=20"], 38.5),
        # Two turns: calls 1-2 evaluate, a tree of two turns takes 2 + 4, calls 15-16 evaluate; turn 2 counts.
        (["transition=revise", "trainer.num_turns=2", "trainer.early_termination_threshold=null"], 16.0),
    ],
)
def test_the_objective_is_the_last_evaluation_or_the_last_tenth_of_training(overrides, objective, monkeypatch):
    returned = []
    task = cli.task
    monkeypatch.setattr(cli, "task", lambda cfg: returned.append(task(cfg)))
    ended = marl_train(*TINY, *reward(COUNTING), *overrides, "hydra.run.dir=run")
    assert (ended.code, ended.err) == (0, "")
    assert returned == [objective]
    assert summary("run")["objective"] == objective


def test_scale_and_shift_are_applied_to_every_reward():
    processor = ["reward_processor.scale=10", "reward_processor.shift=-4", "trainer.logging_steps=1"]
    assert marl_train(*TINY, *reward(COUNTING), *processor, "hydra.run.dir=run").code == 0
    events = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    means = [event["turn_1/reward_mean"] for event in events if event["kind"] == "train"]
    assert means == [10 * 2.5 - 4, 10 * 4.5 - 4]  # calls 2 and 3, calls 4 and 5
    assert summary("run")["objective"] == 10 * 6 - 4
