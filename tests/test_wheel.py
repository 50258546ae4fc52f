"""The wheel: everything a run needs is in it, and it works from another folder, away from the repository."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from commands import ROOT, TINY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The built wheel. hatchling is the build backend; called by itself it needs neither network nor isolation."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    [path] = folder.glob("marl_runner-*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The Python of a fresh environment that has the wheel, and sees the packages it needs but not the repository."""
    folder = tmp_path_factory.mktemp("venv")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    run(install, folder)
    # A path file inside a path file's folder is not read, so an editable install there stays out of sight.
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "needed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return python


def run(command: list[str], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


def test_the_wheel_has_every_yaml_file_and_the_stories_and_no_tests(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    yaml_files = {str(path.relative_to(ROOT)) for path in (ROOT / "conf").rglob("*.yaml")}
    assert len(yaml_files) > 20
    assert {f"marl_runner/{name}" for name in yaml_files} <= names
    assert "marl_runner/datasets/stories.jsonl" in names
    assert {name.split("/")[0] for name in names} == {"marl_runner", "marl_runner-0.1.0.dist-info"}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources


def test_the_installed_package_is_not_the_repository(python, tmp_path):
    place = "import marl_runner.schema as s; print(s.__file__); print(s.conf_dir())"
    module, conf = run([str(python), "-c", place], tmp_path).split()
    assert Path(module).is_relative_to(python.parents[1])
    assert Path(conf) == Path(module).parent / "conf"


def test_the_installed_command_shows_its_configuration_and_its_groups(python, tmp_path):
    marl_train = str(python.parent / "marl-train")
    config = yaml.safe_load(run([marl_train, "--cfg", "job"], tmp_path))
    assert config["dataset"]["_target_"] == "marl_runner.datasets.stories.Stories"
    assert "advantage_mode: max, mean, raw, rloo" in run([marl_train, "--help"], tmp_path)


def test_the_installed_command_trains_in_another_folder(python, tmp_path):
    run([str(python.parent / "marl-train"), *TINY, "hydra.run.dir=run"], tmp_path)
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "completed"
