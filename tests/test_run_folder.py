"""The run folder: what is in it, that it can be moved, and that no two runs share one.

1. A summary is written whatever happens: status, objective, algorithm, counts, seconds, versions, weights, error.
2. Nothing in config.yaml, summary.json, metrics.jsonl and rollouts.jsonl names the folder itself.
3. A folder of a live run, or of an earlier one, is refused before a byte in it changes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from commands import TINY, composed, marl_train, refused, summary
from marl_runner.errors import RunFolderError
from marl_runner.run_folder import RunFolder, refuse_taken

RUN = (*TINY, "hydra.run.dir=run")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of one finished run of two agents, with everything on."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ended = marl_train(*RUN, "tracking.rollouts_every=1", "seed=3", "save_models=true")
    assert (ended.code, ended.err) == (0, "")
    return folder / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- what is in it


def test_a_run_folder_has_its_files_and_nothing_else(finished):
    assert {path.name for path in finished.iterdir()} == {
        ".hydra", "config.yaml", "metrics.jsonl", "models", "rollouts.jsonl", "run.lock", "summary.json", "train.log",
    }  # fmt: skip


def test_the_summary_says_what_was_done(finished):
    facts = summary(finished)
    # 2 tasks of 1 node with K=2: 4 joint actions; buffers of 2 samples: 1 update of each agent; 2 evaluations of 1 row.
    counts = {name: count for name, count in facts["counts"].items() if count}
    # 8 completions of 1 or 2 tokens, those of evaluations not counted.
    assert 8 <= counts.pop("generated_tokens") <= 16
    assert counts == {"tasks": 2, "env_steps": 4, "updates": 2, "reward_calls": 4 + 2}
    assert list(facts) == [
        "status", "command", "objective", "algorithm", "counts", "weights_sha256", "seconds", "versions", "error",
    ]  # fmt: skip
    assert (facts["status"], facts["algorithm"], facts["error"]) == ("completed", "MAGRPO", None)
    assert 0 <= facts["objective"] <= 1
    assert 0 < facts["seconds"] < 600


def test_the_summary_has_the_versions_of_what_computes(finished):
    versions = summary(finished)["versions"]
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == importlib.metadata.version("torch")
    assert set(versions) == {"python", "marl-runner", "torch", "transformers", "datasets", "hydra-core", "omegaconf"}


def test_the_weights_that_are_hashed_are_the_weights_that_are_saved(finished):
    digests = summary(finished)["weights_sha256"]
    assert set(digests) == {"agent_0", "agent_1"}
    assert digests["agent_0"] != digests["agent_1"]
    for name, digest in digests.items():
        model = AutoModelForCausalLM.from_pretrained(finished / "models" / name, dtype="float32")
        assert AutoTokenizer.from_pretrained(finished / "models" / name)("ab")["input_ids"] == [2, 3]
        expected = hashlib.sha256()
        for weight in model.parameters():
            expected.update(f"torch.float32{tuple(weight.shape)}".encode())
            expected.update(weight.detach().contiguous().view(torch.uint8).numpy().tobytes())
        assert digest == expected.hexdigest()


def test_config_yaml_is_the_whole_resolved_configuration(finished):
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["seed"] == 3
    assert config["agents"]["hidden_size"] == 16
    assert set(config) == {str(key) for key in composed()}
    assert "${" not in (finished / "config.yaml").read_text()


def test_nothing_in_the_folder_names_the_folder(finished):
    for name in ("config.yaml", "summary.json", "metrics.jsonl", "rollouts.jsonl"):
        assert str(finished.parent) not in (finished / name).read_text()


def test_every_line_of_metrics_and_rollouts_is_an_object(finished):
    events = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events] == ["eval", "update", "update", "train", "eval"]
    assert len((finished / "rollouts.jsonl").read_text().splitlines()) == 2


def test_the_same_seed_gives_the_same_run_bit_for_bit(finished):
    assert marl_train(*RUN, "tracking.rollouts_every=1", "seed=3").code == 0
    assert marl_train(*TINY, "seed=4", "hydra.run.dir=other").code == 0
    mine, theirs, other = summary("run"), summary(finished), summary("other")
    for name in ("objective", "counts", "weights_sha256"):
        assert mine[name] == theirs[name]
    assert mine["weights_sha256"] != other["weights_sha256"]
    assert Path("run/rollouts.jsonl").read_bytes() == (finished / "rollouts.jsonl").read_bytes()
    assert not Path("run/models").exists()  # debug=step keeps none


def test_a_summary_is_written_though_nothing_could_be_built():
    ended = marl_train("dataset=files", "dataset.path=nowhere.jsonl", "hydra.run.dir=run")
    assert ended.code == 2
    facts = summary("run")
    assert facts["status"] == "failed"
    assert facts["command"] == "marl-train dataset=files dataset.path=nowhere.jsonl hydra.run.dir=run"
    assert facts["error"]["kind"] == "DataError"
    assert (facts["objective"], facts["algorithm"], set(facts["counts"].values())) == (None, "MAGRPO", {0})


def test_a_summary_is_complete_or_not_there():
    with RunFolder(Path("run")) as folder:
        folder.write_summary("failed", ValueError("no"), {"counts": {"tasks": 1}})
        before = Path("run/summary.json").read_bytes()
        with pytest.raises(ValueError, match="not JSON compliant"):
            folder.write_summary("completed", None, {"objective": float("nan")})
    assert Path("run/summary.json").read_bytes() == before
    assert summary("run")["error"] == {"kind": "ValueError", "message": "no"}


# --- two runs never share one


def earlier(folder: Path, name: str = "summary.json") -> str:
    return f"{folder} holds an earlier run ({name}); choose another hydra.run.dir, or remove it"


def test_a_finished_folder_is_refused_before_a_byte_in_it_changes(finished):
    before = contents(finished)
    for extra in ([], ["dry_run=true"]):
        sentence = refused(*TINY, f"hydra.run.dir={finished}", *extra)
        assert sentence == earlier(finished)
    assert contents(finished) == before


def test_the_jobs_of_a_sweep_are_refused_a_finished_folder_too(finished):
    Path("sweep").mkdir()
    (finished.parent / "sweep").mkdir()
    Path("sweep/1").symlink_to(finished)
    sentence = refused("-m", *TINY, "seed=1,2", "hydra.sweep.dir=sweep")
    assert sentence == earlier(Path("sweep/1").absolute())
    assert [path.name for path in Path("sweep").iterdir()] == ["1"]


def test_a_folder_that_a_live_process_owns_is_refused_and_free_when_it_dies():
    script = "import pathlib, sys; from marl_runner.run_folder import RunFolder\n"
    script += "with RunFolder(pathlib.Path('run')): print('owned', flush=True); sys.stdin.read()"
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        busy = f"another run is at work in {Path('run').absolute()}; choose another hydra.run.dir"
        assert refused(*RUN) == busy
        assert [path.name for path in Path("run").iterdir()] == ["run.lock"]
        with pytest.raises(RunFolderError, match=re.escape("another run is at work in run;")), RunFolder(Path("run")):
            pass
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        owner.stdin.close()
    refuse_taken(Path("run"))


def test_what_a_failed_run_wrote_is_not_mixed_with_another_run():
    with RunFolder(Path("run")) as folder:
        folder.write_summary("failed", ValueError("no"), {})
    assert refused(*RUN) == earlier(Path("run").absolute())
    Path("run/summary.json").unlink()  # as a killed run leaves it
    Path("run/metrics.jsonl").touch()
    assert refused(*RUN) == earlier(Path("run").absolute(), "metrics.jsonl")


def test_a_refused_folder_is_given_back():
    Path("run").mkdir()
    Path("run/summary.json").write_text("{}")
    with pytest.raises(RunFolderError, match=re.escape(earlier(Path("run")))), RunFolder(Path("run")):
        pass
    Path("run/summary.json").unlink()
    refuse_taken(Path("run"))
    with RunFolder(Path("run")):
        pass


def test_a_folder_that_is_not_there_or_holds_other_things_is_free():
    Path("run").mkdir()
    Path("run/notes.txt").write_text("mine")
    refuse_taken(Path("run"))
    refuse_taken(Path("not there"))
    assert not Path("not there").exists()
