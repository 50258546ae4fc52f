"""What README and docs say is what the code does: their commands run, their names and links are there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from marl_runner.options import OPTIONS
from marl_runner.schema import SET_ELSEWHERE, RunSchema, TrainerSchema

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MIGRATING = ROOT / "docs" / "migrating.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(page: Path) -> list[str]:
    return [
        line.partition("#")[0].strip()
        for block in blocks(page, "bash")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("marl-train")
    ]


COMMANDS = [*commands(ROOT / "README.md"), commands(MIGRATING)[0]]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    program = str(Path(sys.executable).parent / words[0])
    return subprocess.run([program, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=600)


def small_run_of_everything_in(folder: Path) -> None:
    """What the command about one's own data names: a model folder, a data file and a reward."""
    from marl_runner.policies.tiny import character_tokenizer, tiny_model

    tiny_model(0, 16, 1, 2, 512).save_pretrained(folder / "path" / "or" / "hub-id")
    character_tokenizer().save_pretrained(folder / "path" / "or" / "hub-id")
    (folder / "data.jsonl").write_text('{"prompt": "tell a story"}\n{"prompt": "tell another"}\n')
    (folder / "my_rewards.py").write_text("def score(first, second):\n    return [float(len(second[0]))]\n")


def test_readme_has_commands():
    assert len(COMMANDS) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_runs_as_typed_but_for_its_length(command, tmp_path):
    small_run_of_everything_in(tmp_path)
    shorter = "" if re.search("--help|dry_run", command) else " debug=step tracking.console=false"
    finished = run(command + shorter, tmp_path)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.slow
def test_the_yaml_file_and_the_hooks_of_the_migration_page_train(tmp_path):
    """As printed, but for the model and the rows, which are local here."""
    small_run_of_everything_in(tmp_path)
    (yaml,) = blocks(MIGRATING, "yaml")
    (hooks,) = blocks(MIGRATING, "python")
    (tmp_path / "my_conf" / "experiment").mkdir(parents=True)
    (tmp_path / "my_conf" / "experiment" / "humaneval.yaml").write_text(yaml)
    (tmp_path / "my_rewards.py").write_text(hooks)
    rows = [{"prompt": f"problem {number}", "entry_point": "f"} for number in range(200)]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = commands(MIGRATING)[1]
    composed = run(command, tmp_path)
    assert composed.returncode == 0, composed.stderr
    assert "num_generations: 8" in composed.stdout
    local = "agents.model=path/or/hub-id dataset.name=rows trainer.max_new_tokens=8 tracking.console=false"
    finished = run(f"{command.removesuffix(' --cfg job')} {local} debug=step hydra.run.dir=out", tmp_path)
    assert finished.returncode == 0, finished.stderr
    first = json.loads((tmp_path / "out" / "rollouts.jsonl").read_text().split("\n")[0])
    assert first["tree"]["prompts"][1] == "Write f; you may call aux(...):\nproblem 33"
    assert "The entry point is f." in first["tree"]["children"][0]["prompts"][0]


@pytest.mark.slow
def test_the_default_team_learns_to_collaborate(tmp_path):
    finished = run(f"marl-train hydra.run.dir={tmp_path}/run", tmp_path)
    assert finished.returncode == 0, finished.stderr
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().split("\n") if line]
    rewards = [event["turn_1/reward_mean"] for event in events if event["kind"] == "train"]
    assert rewards[0] < 0.55
    assert rewards[-1] >= 0.8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_trainer_keys_and_options_named_on_a_page_exist(page):
    text = page.read_text()
    for key in re.findall(r"trainer\.(\w+)\b(?!\()", text):
        assert key in vars(TrainerSchema)["__dataclass_fields__"], key
    for group, name in re.findall(
        r"\b(agents|advantage_mode|joint_mode|reward|dataset|transition|tracking)=(\w+)", text
    ):
        assert name in {*OPTIONS[group], "mine"}, f"{group}={name}"


def test_the_configuration_page_names_every_field_that_is_set_elsewhere():
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert (
        f"{['Three', 'Four', 'Five', 'Six'][len(SET_ELSEWHERE) - 3]} fields of `MAGRPOConfig` are set elsewhere" in text
    )
    for field, key in SET_ELSEWHERE.items():
        assert f"`{field}`" in text
        assert key == field or f"`{key}`" in text


def test_the_configuration_page_names_every_option_and_run_key():
    text = (ROOT / "docs" / "configuration.md").read_text()
    for group, options in OPTIONS.items():
        for name in (group, *options):
            assert f"`{name}`" in text, name
    for key in ("seed", "dry_run", "save_models"):
        assert key in vars(RunSchema)["__dataclass_fields__"]
        assert f"`{key}`" in text


@pytest.mark.parametrize("path", sorted((ROOT / "conf").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_yaml_file_says_what_it_is_for(path):
    assert path.read_text().startswith("#")
