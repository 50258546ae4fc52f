"""What `marl-eval` does with what is typed: who plays, what is changed, what is written, and how it ends.

1. The weights that were saved are the weights that play; another run's agent or an untrained model plays as it is.
2. The file has everything that was evaluated and every reward it was computed from, whatever the batches.
3. The run's configuration is changed as for marl-train; a wrong command ends in one line before anything is made.
4. Exit code 0 is a finished evaluation, 1 a failed one, 2 a wrong command, 128 + n a signal; nothing half is written.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import mean

import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console

from commands import ROOT, TINY, Ended, composed, marl_train, model_folder, own_logging, summary
from marl_runner import eval_cli
from marl_runner.loading import load_model, load_tokenizer
from marl_runner.policies.hf import HFPolicy
from marl_runner.policies.tiny import character_tokenizer, tiny_model
from marl_runner.streams import derive_seed
from marl_runner.team import weights_sha256
from marl_runner.team_evaluation.passing import PassRule, pass_at_k
from marl_runner.team_evaluation.players import Player
from marl_runner.team_evaluation.request import EvalRequest
from marl_runner.team_evaluation.results import Estimate, PlayedTurn, TaskResult, TeamEvaluation
from marl_runner.team_evaluation.table import print_table
from marl_runner.types import Prompt, Reward, Turn
from models import in_float64, naive_greedy

TRAINED = (*TINY, "trainer.max_new_tokens=6", "trainer.agent_learning_rate=0.05", "save_models=true")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two finished runs of two agents each, `one` and `two`, of other seeds."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, seed in (("one", 3), ("two", 4)):
            assert marl_train(*TRAINED, f"seed={seed}", f"hydra.run.dir={name}").code == 0
    return folder


@pytest.fixture
def runs(trained):
    """The two runs in the working folder, without their own files of other tests."""
    for name in ("one", "two"):
        shutil.copytree(trained / name, name)
    return Path()


def marl_eval(*arguments: str) -> Ended:
    """Types `marl-eval *arguments` in the working folder."""
    out, err, argv = StringIO(), StringIO(), sys.argv
    with own_logging(), redirect_stdout(out), redirect_stderr(err):
        try:
            sys.argv = ["marl-eval", *arguments]
            code = eval_cli.command()
        except SystemExit as error:
            code = 0 if error.code is None else int(error.code)
        finally:
            sys.argv = argv
    return Ended(code, out.getvalue(), err.getvalue())


def report(*arguments: str, output: str = "out.json") -> dict:
    """What a good command writes."""
    Path(output).unlink(missing_ok=True)
    ended = marl_eval(*arguments, "--output", output)
    assert (ended.code, ended.err) == (0, ""), ended
    return json.loads(Path(output).read_text())


def refused(*arguments: str, code: int = 2) -> str:
    """The one line that a wrong command ends with; nothing is made."""
    before = sorted(Path().rglob("*"))
    ended = marl_eval(*arguments)
    assert ended.code == code, ended
    assert ended.out == ""
    assert ended.err.startswith("marl-eval: ")
    assert ended.err.count("\n") == 1, ended.err
    assert len(ended.err) < 320, ended.err
    assert [path for path in sorted(Path().rglob("*")) if "__pycache__" not in path.parts] == before
    return ended.err.removeprefix("marl-eval: ").rstrip("\n")


def saved_run(name: str, *overrides: str) -> Path:
    """A run folder as a finished run leaves it, without its models."""
    Path(name).mkdir()
    OmegaConf.save(composed(*overrides), Path(name, "config.yaml"), resolve=True)
    return Path(name)


def completions(found: dict, agent: int) -> list[list[str]]:
    """[path][turn] → an agent's texts."""
    samples = [sample for task in found["tasks"] for sample in task["samples"]]
    return [[turn["completions"][agent] for turn in sample["turns"]] for sample in samples]


def python_reward(body: str) -> tuple[str, str]:
    """The options for a reward function with this body, in a file of its own."""
    Path("rewards.py").write_text(f"import os, signal, sys, time\n\ndef score(first, second):\n{body}")
    return "reward=python", "reward.function=rewards.py:score"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- what is evaluated and written


def test_a_run_is_evaluated_as_it_is_and_nothing_else_in_its_folder_changes(runs):
    before = contents(Path("one"))
    ended = marl_eval("one")
    assert (ended.code, ended.err) == (0, "")
    [file] = Path("one/eval").iterdir()
    assert file.name.startswith("eval-")
    assert f"written to {file}" in ended.out
    assert {name: data for name, data in contents(Path("one")).items() if not name.startswith("eval/")} == before
    found = json.loads(file.read_text(encoding="ascii"))
    # The split is the last tenth of 40 rows.
    facts = {name: found[name] for name in ("run", "algorithm", "seed", "split", "num_tasks", "num_samples", "greedy")}
    assert facts == {
        "run": "one", "algorithm": "MAGRPO", "seed": 3, "split": "eval", "num_tasks": 4, "num_samples": 1,
        "greedy": False,
    }  # fmt: skip
    assert found["sampling"] == {"max_new_tokens": 6, "temperature": 1.0, "top_p": 1.0, "top_k": None}
    assert found["weights_sha256"] == summary("one")["weights_sha256"]
    assert found["agents"] == [{"player": "trained", "run": None, "agent": agent} for agent in range(2)]
    assert found["counts"]["reward_calls"] == 4
    assert str(Path().absolute()) not in file.read_text()


def test_every_number_can_be_computed_from_the_file(runs):
    found = report("one", "--samples", "3", "--k", "1", "2", "--pass", "reward>=0.4", "dataset.eval_fraction=0.2")
    assert (found["num_tasks"], found["num_samples"], found["pass_rule"]) == (8, 3, "reward>=0.4")
    rewards = [[sample["turns"][0]["reward"] for sample in task["samples"]] for task in found["tasks"]]
    counts = [sum(reward >= 0.4 for reward in rewards_S) for rewards_S in rewards]
    assert [[sample["passed"] for sample in task["samples"]] for task in found["tasks"]] == [
        [reward >= 0.4 for reward in rewards_S] for rewards_S in rewards
    ]
    assert found["metrics"]["eval/turn_1/reward_mean"]["mean"] == mean([mean(rewards_S) for rewards_S in rewards])
    for k in (1, 2):
        estimate = found["metrics"][f"eval/pass@{k}"]
        assert estimate["mean"] == mean([pass_at_k(3, count, k) for count in counts])
        assert estimate["ci_low"] <= estimate["mean"] <= estimate["ci_high"]
    assert 0 < sum(counts) < 24
    assert "completions" not in found["tasks"][0]["samples"][0]["turns"][0]


def test_batches_change_nothing_and_another_seed_other_draws(runs):
    asked = ["one", "--samples", "3", "--texts", "transition=revise", "trainer.num_turns=2"]
    whole = report(*asked)
    before = Path("out.json").read_bytes()
    for size in ("1", "5"):
        report(*asked, "--batch-size", size)
        assert Path("out.json").read_bytes() == before
    report(*asked, "trainer.max_rollout_rows=2")
    assert completions(json.loads(Path("out.json").read_text()), 0) == completions(whole, 0)
    assert completions(report(*asked, "--seed", "3"), 0) == completions(whole, 0)
    assert completions(report(*asked, "--seed", "4"), 0) != completions(whole, 0)
    # Two turns of 4 tasks and 3 samples; the first samples are those of an evaluation of fewer.
    assert [len(turns) for turns in completions(whole, 0)] == [2] * 12
    fewer = report(*asked[:1], "--num-tasks", "2", *asked[3:])
    assert completions(fewer, 1) == [completions(whole, 1)[0], completions(whole, 1)[3]]


def test_greedy_is_the_likeliest_token_again_and_again(runs):
    found = report("one", "--greedy", "--texts")
    assert (found["greedy"], found["sampling"]["top_k"]) == (True, 1)
    tokenizer = load_tokenizer("one/models/agent_1")
    double = in_float64(load_model("one/models/agent_1", None, None))
    for task in found["tasks"]:
        [turn] = task["samples"][0]["turns"]
        prompt = Prompt("", tuple(tokenizer(turn["prompts"][1])["input_ids"]))
        ids = naive_greedy(double, prompt, 6, end_ids=(0,))
        assert turn["completions"][1] == tokenizer.decode(ids, skip_special_tokens=True)
    assert completions(report("one", "--greedy", "--texts", "--seed", "8"), 0) == completions(found, 0)


def test_components_are_reported_and_tests_are_what_passes(runs):
    Path("parts.py").write_text(
        "def score(first, second):\n    return [{'tests': float(len(first[0]) % 2), 'style': 0.25}]\n"
    )
    ended = marl_eval(
        "one", "--samples", "2", "reward=python", "reward.function=parts.py:score", "--output", "out.json"
    )
    assert (ended.code, ended.err) == (0, "")
    assert "a path passes if tests>=1 at its last turn" in ended.out
    found = json.loads(Path("out.json").read_text())
    metrics = found["metrics"]
    assert metrics["eval/turn_1/reward/style"] == {"mean": 0.25, "ci_low": 0.25, "ci_high": 0.25, "num_tasks": 4}
    assert metrics["eval/pass@1"]["mean"] == metrics["eval/turn_1/reward/tests"]["mean"]
    assert found["pass_rule"] == "tests>=1"
    assert found["overrides"] == ["reward=python", "reward.function=parts.py:score"]
    assert set(found["tasks"][0]["samples"][0]["turns"][0]["components"]) == {"tests", "style"}


def test_the_training_split_has_the_names_of_training(runs):
    found = report("one", "--split", "train", "--num-tasks", "1")
    assert [task["uid"] for task in found["tasks"]] == ["1"]  # debug=step trains on two
    assert found["metrics"]["eval/turn_1/reward_mean"]["ci_low"] is None
    assert [task["uid"] for task in report("one")["tasks"]] == ["eval-1", "eval-2", "eval-3", "eval-4"]


def test_another_dataset_can_be_chosen(runs):
    Path("rows.jsonl").write_text('{"question": "tell"}\n')
    chosen = ["dataset=files", "dataset.path=rows.jsonl", "dataset.columns={prompt: question}"]
    found = report("one", "--texts", *chosen, "dataset.eval_path=rows.jsonl")
    assert found["tasks"][0]["samples"][0]["turns"][0]["prompts"] == ["tell", "tell"]
    assert found["num_tasks"] == 1


def test_settings_of_training_do_not_stop_or_burden_an_evaluation(runs):
    config = OmegaConf.load("one/config.yaml")
    config.trainer.reference_kl_enabled = True
    config.trainer.lr_scheduler = "linear"
    config.trainer.early_termination_threshold = -9.0
    config.advantage_mode._target_ = "marl_runner.advantage_modes.max.Max"  # warned of in training
    OmegaConf.save(config, "one/config.yaml")
    found = report("one", "transition=revise", "trainer.num_turns=2")
    assert found["algorithm"] == "MAReMax"
    assert found["metrics"]["eval/turn_2/reward_mean"]["num_tasks"] == 4


def test_the_commands_of_the_page_run_as_typed(runs):
    page = (ROOT / "docs" / "evaluation.md").read_text()
    [block] = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(commands) >= 6
    for program, *arguments in commands:
        assert program == "marl-eval"
        ended = marl_eval(*arguments)
        assert (ended.code, ended.err) == (0, "")
    assert len(list(Path("one/eval").iterdir())) == len(commands)


# --- who plays


def test_an_agent_of_another_run_plays_as_it_does_at_home(runs):
    options = python_reward("    return [1000.0 * sum(map(ord, first[0])) + sum(map(ord, second[0]))]\n")
    asked = ["--texts", "--samples", "2", "--seed", "11", *options]
    one, two = (report(name, *asked) for name in ("one", "two"))
    both = report("one", *asked, "--swap", "1=two")
    assert both["weights_sha256"] == {
        "agent_0": summary("one")["weights_sha256"]["agent_0"],
        "agent_1": summary("two")["weights_sha256"]["agent_1"],
    }
    assert both["agents"][1] == {"player": "swapped", "run": "../two", "agent": 1}
    assert completions(both, 0) == completions(one, 0)
    assert completions(both, 1) == completions(two, 1) != completions(one, 1)
    # The reward is of what these two said together: thousands of agent 0, ones of agent 1.
    rewards = [turn["reward"] for task in both["tasks"] for sample in task["samples"] for turn in sample["turns"]]
    said = zip(completions(one, 0), completions(two, 1), strict=True)
    assert rewards == [1000.0 * sum(map(ord, first)) + sum(map(ord, second)) for [first], [second] in said]


def test_a_swap_may_name_another_place_and_a_folder_with_a_colon(runs):
    Path("two").rename("12:30:0")
    weights = summary("12:30:0")["weights_sha256"]
    assert report("one", "--swap", "0=12:30:0")["weights_sha256"]["agent_0"] == weights["agent_0"]
    assert report("one", "--swap", "0=12:30:0:1")["weights_sha256"]["agent_0"] == weights["agent_1"]
    # Both places, crossed over.
    crossed = report("one", "--swap", "0=one:1", "--swap", "1=one:0")["weights_sha256"]
    own = summary("one")["weights_sha256"]
    assert crossed == {"agent_0": own["agent_1"], "agent_1": own["agent_0"]}


def test_an_untrained_agent_is_the_model_that_training_began_with(runs):
    asked = ["--texts", "--seed", "11"]
    one = report("one", *asked)
    base = report("one", *asked, "--base", "0")
    model = tiny_model(derive_seed(3, "weights", 0), 16, 1, 4, 512)
    expected = weights_sha256(HFPolicy(model, character_tokenizer(), torch.device("cpu")))
    assert base["weights_sha256"] == {"agent_0": expected, "agent_1": one["weights_sha256"]["agent_1"]}
    assert base["agents"][0] == {"player": "untrained", "run": None, "agent": 0}
    assert expected != one["weights_sha256"]["agent_0"]
    assert completions(base, 1) == completions(one, 1)
    assert completions(base, 0) != completions(one, 0)


def test_an_untrained_team_needs_no_saved_models_and_a_folder_may_be_moved(runs):
    shutil.rmtree("one/models")
    Path("one").rename("elsewhere")
    found = report("elsewhere", "--base", "0", "--base", "1")
    assert [agent["player"] for agent in found["agents"]] == ["untrained"] * 2
    assert "agent 0: untrained" in marl_eval("elsewhere", "--base", "0", "--base", "1").out


def test_a_swapped_model_is_sent_the_role_of_its_place_in_its_own_chat_template(runs):
    first, second = (model_folder(Path(name).absolute(), chat=True) for name in ("first", "second"))
    tokenizer = load_tokenizer(second)
    tokenizer.chat_template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    tokenizer.save_pretrained(second)
    roles = "agents.role_prompts=['zero {prompt}','one {prompt}']"
    for name, model in (("mine", first), ("theirs", second)):
        run = saved_run(
            name, "agents=pretrained", f"agents.model={model}", "agents.chat_template=true", roles, *TINY[:1]
        )
        for agent in range(2):
            shutil.copytree(model, run / "models" / f"agent_{agent}")
    found = report("mine", "--swap", "1=theirs:0", "--texts", "--num-tasks", "1", "dataset.max_tasks=1")
    [turn] = found["tasks"][0]["samples"][0]["turns"]
    story = turn["prompts"][1].removeprefix("[one ").removesuffix("]")
    assert turn["prompts"] == [f"<user>zero {story}", f"[one {story}]"]
    # The models that the configuration names need not be there any more, but for an untrained agent.
    shutil.rmtree(first)
    assert report("mine", "--num-tasks", "1")["agents"][0]["player"] == "trained"
    assert refused("mine", "--base", "0").startswith(f"model {first} is neither a local folder nor to be had from")


def test_weights_are_loaded_as_precisely_as_they_were_saved(runs):
    model = model_folder(Path("model"))
    mixed = ["agents=pretrained", f"agents.model={model}", "agents.dtype=bfloat16", "trainer.mixed_precision=bf16"]
    small = [TINY[0], "trainer.max_new_tokens=2", "save_models=true", "trainer.agent_learning_rate=1e-5"]
    assert marl_train(*mixed, *small, "hydra.run.dir=mixed").code == 0
    found = report("mixed")
    assert found["weights_sha256"] == summary("mixed")["weights_sha256"]
    base = report("mixed", "--base", "1")["weights_sha256"]["agent_1"]
    rounded = HFPolicy(load_model(model, "bfloat16", None), load_tokenizer(model), torch.device("cpu"), "bf16")
    assert base == weights_sha256(rounded)
    assert base != found["weights_sha256"]["agent_1"]


# --- wrong commands


HELP = " (marl-eval --help lists the arguments)"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: RUN_FOLDER" + HELP),
        (["nowhere"], "nowhere is no run folder: it has no config.yaml; name the folder of a run"),
        (["one", "--sample", "3"], "unknown option --sample; nearest: --samples" + HELP),
        (["one", "two"], "two is no KEY=VALUE, and one is the run folder: one at a time" + HELP),
        (["one", "--samples", "0"], "--samples: must be an integer >= 1, got 0" + HELP),
        (["one", "--samples", "2.5"], "--samples: must be an integer >= 1, got 2.5" + HELP),
        (["one", "--num-tasks", "-1"], "--num-tasks: must be an integer >= 1, got -1" + HELP),
        (["one", "--batch-size", "0"], "--batch-size: must be an integer >= 1, got 0" + HELP),
        (["one", "--seed", "-1"], "--seed: must be an integer >= 0, got -1" + HELP),
        (["one", "--resamples", "10"], "--resamples: must be an integer >= 100, got 10" + HELP),
        (["one", "--k", "ten"], "--k: must be an integer >= 1, got ten" + HELP),
        (["one", "--k", "0", "1"], "--k: must be an integer >= 1, got 0" + HELP),
        (["one", "--k"], "--k: expected at least one argument" + HELP),
        (["one", "--samples", "5", "--k", "1", "10"], "pass@10 needs at least 10 samples of each task, got 5: set "
                                                       "--samples 10"),
        (["one", "--greedy", "--samples", "2"], "--greedy gives one answer only: --samples must be 1, got 2"),
        (["one", "--split", "test"], "--split: invalid choice: 'test' (choose from 'eval', 'train')" + HELP),
        (["one", "--pass", "tests"], "--pass: must be NAME>=VALUE with a number, as 'tests>=1', got 'tests'" + HELP),
        (["one", "--pass", "a>=nan"], "--pass: must be NAME>=VALUE with a number, as 'tests>=1', got 'a>=nan'" + HELP),
        (["one", "--pass", ">=1"], "--pass: must be NAME>=VALUE with a number, as 'tests>=1', got '>=1'" + HELP),
        (["one", "--swap", "two"], "--swap: must be AGENT=RUN_FOLDER, as 1=outputs/other, got 'two'" + HELP),
        (["one", "--swap", "x=two"], "--swap: must be AGENT=RUN_FOLDER, as 1=outputs/other, got 'x=two'" + HELP),
        (["one", "--swap", "2=two"], "--swap 2: the team has 2 agents, 0 to 1"),
        (["one", "--swap", "0=two:2"], "--swap 0=two: that run has 2 agents, and no agent 2; name one of them as "
                                       "--swap 0=two:0"),
        (["one", "--swap", "0=gone"], "gone is no run folder: it has no config.yaml; name the folder of a run"),
        (["one", "--base", "2"], "--base 2: the team has 2 agents, 0 to 1"),
        (["one", "--base", "0", "--base", "0"], "--base names agent 0 more than once"),
        (["one", "--swap", "1=two", "--swap", "1=one"], "--swap names agent 1 more than once"),
        (["one", "--swap", "1=two", "--base", "1"], "agent 1 has both --swap and --base: keep one"),
        (["one", "--output", "two"], "two is there already: name another file with --output, or remove it"),
        (["one", "--output", "one/config.yaml/out.json"], "one/config.yaml/out.json cannot be written: "),
        # Changes of the configuration.
        (["one", "trainer.max_new_token=3"], "unknown key trainer.max_new_token; nearest: trainer.max_new_tokens"),
        (["one", "--k", "1", "trainer.temperature=hot"], "trainer.temperature must be a number, got hot"),
        (["one", "trainer.temperature=-1"], "trainer.temperature must be a number > 0, got -1.0"),
        (["one", "dataset.pth=x"], "unknown key dataset.pth; nearest: dataset.max_tasks"),
        (["one", "dataset=fils"], "dataset has no option 'fils'; nearest: files (valid: "),
        (["one", "+trainer.x=1"], "unknown key trainer.x"),
        (["one", "trainer.num_turns=2"], "trainer.num_turns=2 needs a transition: add transition=revise"),
        (["one", "reward.target_min={"], "cannot read the override reward.target_min={: quote its text: "),
        (["one", "reward.target_min=1,2"], "reward.target_min=1,2 is several values; as one text: "),
        (["one", "seed=4"], "marl-eval takes no seed=4: give the seed of the evaluation as --seed N"),
        (["one", "tracking=wandb"], "marl-eval takes no tracking=wandb: it plays no part in an evaluation"),
        (["one", "hydra.run.dir=x"], "marl-eval takes no hydra.run.dir=x: it plays no part in an evaluation"),
        (["one", "debug=step"], "marl-eval takes no debug=step: change single keys, or choose another dataset, reward "
                                "or transition"),
        (["one", "agents=tiny"], "marl-eval takes no agents=tiny: the agents are those of the run; change a key of "),
        (["one", "agents.num_agents=3"], "one has no models/agent_2: the run did not end, or had save_models=false; "),
        (["one", "dataset.eval_fraction=0"], "the eval split has no rows: set dataset.eval_fraction or the dataset's "
                                             "own evaluation rows, or evaluate on --split train"),
        (["one", "dataset=files", "dataset.path=no.csv"], "dataset.path=no.csv does not exist (working folder "),
        (["one", "reward=python", "reward.function=no.py:f"], "reward.function=no.py:f: no file no.py (looked in "),
        (["one", "trainer.max_new_tokens=600"], "max_new_tokens=600 leaves no room for a prompt in the context of 512"),
        (["one", "--k", "1"], "pass@k by tests>=1 needs a reward with the component 'tests', and it has none: choose "
                              "what passes with --pass 'reward>=VALUE'"),
    ],
)  # fmt: skip
def test_a_wrong_command_ends_with_2_and_one_line_before_anything_is_made(runs, arguments, sentence):
    assert refused(*arguments).startswith(sentence)


def test_a_run_without_models_says_how_to_get_them(runs):
    shutil.rmtree("one/models")
    assert refused("one") == (
        "one has no models/agent_0: the run did not end, or had save_models=false; train it with save_models=true, or "
        "put the untrained model in its place with --base 0"
    )
    assert refused("two", "--swap", "0=one").startswith("one has no models/agent_0: ")


def test_a_folder_that_is_no_run_is_told_from_a_sweep_and_a_broken_file(runs):
    Path("sweep").mkdir()
    Path("sweep/multirun.yaml").touch()
    assert refused("sweep") == "sweep is a sweep: name one of its jobs, as sweep/0"
    Path("one/config.yaml").write_text("- a\n")
    assert refused("one") == "one/config.yaml is not the configuration of a run"
    Path("one/config.yaml").write_text("seed: [\n")
    assert "one/config.yaml, line 2: expected the node content" in refused("one")
    Path("one/config.yaml").write_text("seed: 1\nsede: 2\n")
    assert refused("one").startswith("unknown key or group sede; nearest: seed")


def test_a_team_of_chats_refuses_a_model_without_a_chat_template(runs):
    model = model_folder(Path("model"), chat=True)
    saved_run("chat", "agents=pretrained", f"agents.model={model}", "agents.chat_template=true", *TINY[:1])
    for agent in range(2):
        shutil.copytree(model, f"chat/models/agent_{agent}")
    said = refused("chat", "--swap", "0=one")
    assert said.startswith("agents.chat_template=true, but the tokenizer of ")
    assert said.endswith(" has none: set agents.chat_template=false, or name an instruction-tuned model")


# --- how it ends


def test_a_failing_reward_ends_with_1_and_one_line(runs):
    options = python_reward("    raise KeyError('lost')\n")
    said = "reward rewards.py:score raised KeyError: 'lost' at rewards.py:4 (evaluation task eval-1, sample 1, turn 1;"
    assert refused("one", *options, code=1).startswith(said)


def test_an_exit_in_a_reward_is_a_failure_though_its_code_is_0(runs):
    assert refused("one", *python_reward("    sys.exit(0)\n"), code=1) == "something in the evaluation called exit(0)"


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_it_though_a_reward_swallows_exceptions(runs, name, code):
    body = f"    try:\n        os.kill(os.getpid(), signal.{name})\n        time.sleep(60)\n"
    body += "    except Exception:\n        pass\n    return [0.5]\n"
    assert refused("one", *python_reward(body), code=code) == f"stopped by {name}"


def test_the_full_trace_is_there_for_who_asks_for_it(runs, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(Exception, match=r"trainer\.num_turns must be an integer, got two"):
        marl_eval("one", "trainer.num_turns=two")


def test_a_fault_of_the_program_keeps_its_trace(runs, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ValueError("out of the blue")

    monkeypatch.setattr("marl_runner.team_evaluation.command.evaluate_team", broken)
    with pytest.raises(ValueError, match="out of the blue"):
        marl_eval("one")
    assert not Path("one/eval").exists()


LIGHT = """
import sys
from marl_runner import eval_cli
for arguments in (["--help"], ["nowhere"], ["run", "trainer.x=1"], ["run", "--swap", "0=run:5"], ["run", "dataset=f"]):
    sys.argv = ["marl-eval", *arguments]
    try:
        eval_cli.command()
    except SystemExit:
        pass
    heavy = {"torch", "transformers", "datasets", "scipy", "pandas"} & set(sys.modules)
    assert not heavy, (arguments, heavy)
"""


def test_help_and_wrong_commands_never_import_torch():
    saved_run("run", *TINY)
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    for flag in ("--split", "--num-tasks", "--samples", "--k", "--pass", "--greedy", "--swap", "--base", "--texts"):
        assert flag in done.stdout
    assert done.stderr.count("marl-eval: ") == 4


@pytest.mark.slow
def test_ctrl_c_from_outside_ends_a_sleeping_reward_within_seconds(runs):
    options = python_reward("    open('started', 'w').close()\n    time.sleep(120)\n")
    command = [sys.executable, "-c", "from marl_runner.eval_cli import main; main()", "one", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 90
        while not Path("started").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        stopped = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - stopped < 10
        assert (process.returncode, err) == (130, "marl-eval: stopped by SIGINT\n")
        assert not Path("one/eval").exists()
    finally:
        if process.poll() is None:
            process.kill()


# --- the table


def test_names_are_shown_as_they_are_and_an_interval_of_one_task_as_a_dash(runs, capsys):
    request = EvalRequest(
        folder=Path("[bold]run"), overrides=(), split="eval", num_tasks=None, num_samples=2, ks=None, greedy=False,
        seed=None, batch_size=None, rule=None, resamples=100, swaps=(), bases=(), output=Path("x"), texts=False,
    )  # fmt: skip
    task = TaskResult("eval-1", ((PlayedTurn(Turn(("p",), ("a",)), Reward(0.5, {"[red]part": 0.5})),),))
    metrics = {"eval/turn_1/reward/[red]part": Estimate(0.5, None, 1), "eval/pass@1": Estimate(0.25, (0.125, 0.5), 9)}
    players = [Player("swapped", Path("w"), Path("[i]other"), 2), Player("untrained", None, None, 1)]
    print_table(request, players, TeamEvaluation((task,), metrics, PassRule("reward", 0.5)), Console(width=100))
    printed = capsys.readouterr().out
    lines = [" ".join(line.replace("│", " ").split()) for line in printed.splitlines()]
    assert "[bold]run: eval split, 1 tasks, 2 samples each" in lines
    assert "eval/turn_1/reward/[red]part 0.500 - 1" in lines
    assert "eval/pass@1 0.250 0.125 to 0.500 9" in lines
    assert lines[-3:] == [
        "agent 0: agent 2 of [i]other", "agent 1: untrained", "a path passes if reward>=0.5 at its last turn",
    ]  # fmt: skip


def test_without_a_test_component_the_table_says_what_to_do(runs):
    said = "no pass@k: the reward has no component 'tests'; say what passes with --pass 'NAME>=VALUE'"
    assert said in marl_eval("one").out
