"""docs/differences.md is true: its scripts print what the page says, about CoMLRL as well as about this package."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch

PAGE = Path(__file__).parent.parent / "docs" / "differences.md"
NUM_SPEC_ROWS = 14
# A fence with a word after the language, as in "python smollm2", is for the reader only.
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Section(NamedTuple):
    """One `##` section: its title, and its scripts with the output that follows each."""

    title: str
    scripts: list[tuple[str, str]]


def sections() -> list[Section]:
    """The sections of the page; Setup has a script without output."""
    found = []
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        blocks = BLOCK.findall(body)
        scripts = [text for language, text in blocks if language == "python"]
        outputs = [text for language, text in blocks if language == "text"]
        found.append(Section(title, list(zip(scripts, outputs or [""], strict=True))))
    return found


SETUP, *DIFFERENCES = sections()


@pytest.fixture(scope="module")
def setup_names() -> dict[str, Any]:
    """What the Setup block defines; rewards defined in a script are named as in a script that is run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SETUP.scripts[0][0], "differences.md, Setup", "exec"), names)
    return names


@contextlib.contextmanager
def fresh_process_state(folder: Path):
    """Working folder, environment, temporary files and random streams of a script's own."""
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ),
        mock.patch.object(tempfile, "tempdir", str(folder)),
        torch.random.fork_rng(devices=[]),
    ):
        state = random.getstate()
        try:
            yield
        finally:
            random.setstate(state)


def output_of(script: str, title: str, names: dict[str, Any], folder: Path) -> str:
    """What a script prints when it follows the Setup block."""
    printed = io.StringIO()
    with fresh_process_state(folder), contextlib.redirect_stdout(printed):
        exec(compile(script, f"differences.md, {title}", "exec"), dict(names))
    return printed.getvalue()


@pytest.mark.parametrize("section", DIFFERENCES, ids=lambda section: section.title)
def test_a_script_of_the_page_prints_what_the_page_says(section, setup_names, tmp_path):
    for script, expected in section.scripts:
        assert output_of(script, section.title, setup_names, tmp_path) == expected


def test_the_page_has_a_section_and_a_line_of_its_table_for_every_difference():
    numbers = [int(section.title.partition(".")[0]) for section in DIFFERENCES]
    rows = [int(row) for row in re.findall(r"^\| \[(\d+)\]\(#", PAGE.read_text(), re.MULTILINE)]
    assert numbers == rows == list(range(1, len(numbers) + 1))
    assert len(numbers) >= NUM_SPEC_ROWS
    assert all(section.scripts for section in DIFFERENCES)


def test_compat_covers_exactly_the_rows_the_page_says():
    covered = re.findall(r"^\| \[(\d+)\].*\| yes \|$", PAGE.read_text(), re.MULTILINE)
    assert covered == ["1", "4", "5", "30"]
    assert "brings rows 1, 4, 5 and 30 back" in PAGE.read_text()


def test_links_of_the_table_lead_to_sections():
    # GitHub's anchor: lower case, without punctuation, spaces as dashes.
    anchors = {re.sub(r"[^\w\- ]", "", section.title.lower()).replace(" ", "-") for section in DIFFERENCES}
    assert set(re.findall(r"\(#([^)]+)\)", PAGE.read_text())) == anchors
