"""Behaviours of the `dataset` group that these tests protect.

1. What comes in: text stays the text in the file, for every format; nothing is guessed or repaired.
2. What is refused: each broken file is told in one sentence that names the file, the row or line, and the fix.
3. Which rows: columns, evaluation rows and `max_tasks` mean the same for every option, in file order.
4. What it costs: importing the options imports no heavy library, and no cache serves content that is gone.
"""

import csv
import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_class
from omegaconf import OmegaConf

from marl_runner.datasets.fields import require_fields
from marl_runner.datasets.files import Files
from marl_runner.datasets.hub import Hub
from marl_runner.datasets.stories import Stories
from marl_runner.errors import ConfigError, DataError

CONF = Path(__file__).parents[1] / "conf" / "dataset"


def make_files(path, *, eval_path=None, eval_fraction=0.0, columns=None, max_tasks=None):
    return Files(str(path), eval_path and str(eval_path), eval_fraction, columns or {"prompt": "prompt"}, max_tasks)


def make_hub(name, *, config=None, split="train", eval_split=None, eval_fraction=0.0, columns=None, max_tasks=None):
    columns = columns or {"prompt": "prompt"}
    return Hub(str(name), config, split, eval_split, eval_fraction, columns, max_tasks)


def written(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def train_rows(folder, name, content, **settings):
    return make_files(written(folder, name, content), **settings)().train


def refusal(folder, name, content, **settings):
    path = written(folder, name, content)
    with pytest.raises(DataError) as caught:
        make_files(path, **settings)()
    message = str(caught.value)
    assert "\n" not in message
    return message


def write_parquet(path, columns):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def ten_rows(folder, name="data.jsonl"):
    return written(folder, name, "".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(1, 11)))


def prompts(rows):
    return [row["prompt"] for row in rows]


# --- the YAML and the class -----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["stories", "files", "hub"])
def test_the_yaml_of_an_option_gives_every_field_of_its_class_a_value_of_the_right_type(option):
    values = OmegaConf.load(CONF / f"{option}.yaml")
    cls = get_class(values.pop("_target_"))
    assert set(values) == {field.name for field in dataclasses.fields(cls)}
    assert all(field.default is dataclasses.MISSING for field in dataclasses.fields(cls))
    schema = OmegaConf.structured(cls)
    OmegaConf.set_readonly(schema, False)
    schema = OmegaConf.merge(schema, values)
    assert OmegaConf.to_container(schema) == OmegaConf.to_container(values)


def test_importing_the_options_imports_no_heavy_library():
    code = (
        "import sys, marl_runner.datasets.files, marl_runner.datasets.hub, marl_runner.datasets.stories\n"
        "print([m for m in ('torch', 'transformers', 'datasets', 'pyarrow', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- stories --------------------------------------------------------------------------------------------------


def test_the_default_stories_are_36_distinct_training_prompts_and_4_for_evaluation():
    values = OmegaConf.to_container(OmegaConf.load(CONF / "stories.yaml"))
    splits = Stories(max_tasks=values["max_tasks"], eval_fraction=values["eval_fraction"])()
    assert (len(splits.train), len(splits.eval)) == (36, 4)  # round(0.1 * 40) = 4
    everything = prompts(splits.train + splits.eval)
    assert len(set(everything)) == 40
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,'?!-")
    assert all(set(prompt) <= allowed and prompt.endswith(".") for prompt in everything)


def test_max_tasks_keeps_the_first_stories_and_leaves_the_evaluation_rows_alone():
    whole, two = Stories(None, 0.1)(), Stories(2, 0.1)()
    assert two.train == whole.train[:2]
    assert two.eval == whole.eval


# --- text stays text ------------------------------------------------------------------------------------------


def test_csv_cells_that_look_like_missing_values_numbers_or_booleans_stay_text(tmp_path):
    words = ["null", "NA", "None", "NaN", "007", "1e5", "TRUE", "2020-01-01", " x "]
    content = "prompt,answer\n" + "".join(f"{word},{word}\n" for word in words) + "last,\n"
    rows = train_rows(tmp_path, "data.csv", content)
    assert rows == [{"prompt": word, "answer": word} for word in words] + [{"prompt": "last", "answer": ""}]


ODD_TEXTS = [
    "a\u2028b",
    "a\u2029b",
    "a\u0085b",
    "a\x00b",
    "a\x1b[31mred\x1b[0m",
    "a\x0bb\x0cc\x1cd",
    "a\rb",
    "a\ufeffb",
]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "raw"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_separators_and_control_characters_inside_jsonl_text_are_one_row_unchanged(tmp_path, text, escaped, line_end):
    cell = json.dumps(text) if escaped else f'"{text}"'
    rows = train_rows(tmp_path, "data.jsonl", f'{{"prompt": {cell}}}{line_end}{{"prompt": "second"}}{line_end}')
    assert rows == [{"prompt": text}, {"prompt": "second"}]


@pytest.mark.parametrize("text", ["\ud800", "\udfff end", "😀"], ids=ascii)
def test_lone_surrogates_and_pairs_inside_json_text_stay_as_they_are(tmp_path, text):
    rows = [{"prompt": f"x{text}"}]
    assert train_rows(tmp_path, "data.jsonl", json.dumps(rows[0])) == rows
    assert train_rows(tmp_path, "data.json", json.dumps(rows)) == rows


@pytest.mark.parametrize("text", [*ODD_TEXTS, "two\r\nlines", 'say "hi", now'], ids=ascii)
def test_separators_and_line_ends_inside_a_quoted_csv_cell_stay_as_they_are(tmp_path, text):
    quoted = text.replace('"', '""')
    assert train_rows(tmp_path, "data.csv", f'prompt,n\n"{quoted}",1\nb,2\n') == [
        {"prompt": text, "n": "1"},
        {"prompt": "b", "n": "2"},
    ]


def test_values_and_absent_keys_of_json_rows_stay_as_they_are(tmp_path):
    rows = [{"prompt": "a", "tests": ["x"], "score": 1.5}, {"prompt": "b", "date": "2020-01-01", "flag": True}]
    assert train_rows(tmp_path, "data.jsonl", "\n".join(map(json.dumps, rows))) == rows
    assert train_rows(tmp_path, "data.ndjson", "\n".join(map(json.dumps, rows))) == rows
    assert train_rows(tmp_path, "data.JSON", json.dumps(rows, indent=2)) == rows


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.jsonl", '{"prompt": "é"}\r\n{"prompt": "b"}\r\n'),
        ("data.json", '[{"prompt": "é"},\r\n{"prompt": "b"}]'),
        ("data.csv", "prompt\r\né\r\nb\r\n"),
    ],
)
def test_files_with_a_byte_order_mark_and_crlf_load(tmp_path, name, content):
    assert train_rows(tmp_path, name, "\ufeff" + content) == [{"prompt": "é"}, {"prompt": "b"}]


def test_blank_lines_are_skipped_where_they_cannot_be_rows(tmp_path):
    expected = [{"prompt": "a", "n": "1"}, {"prompt": "b", "n": "2"}]
    jsonl = '\n{"prompt": "a", "n": "1"}\n \t\r\n{"prompt": "b", "n": "2"}\n\n'
    assert train_rows(tmp_path, "data.jsonl", jsonl) == expected
    assert train_rows(tmp_path, "data.csv", "\nprompt,n\na,1\n\nb,2\n\n\n") == expected
    assert train_rows(tmp_path, "one.csv", "prompt\na\nb\n\n") == [{"prompt": "a"}, {"prompt": "b"}]


def test_huge_csv_cells_load_and_the_csv_module_keeps_its_limit(tmp_path):
    before = csv.field_size_limit(131_072)  # the csv module's own
    try:
        huge = "x" * 200_000
        assert train_rows(tmp_path, "data.csv", f"prompt,n\n{huge},1\n") == [{"prompt": huge, "n": "1"}]
        assert csv.field_size_limit() == 131_072
    finally:
        csv.field_size_limit(before)


def test_parquet_rows_keep_their_types_and_null_is_none(tmp_path):
    path = write_parquet(tmp_path / "data.parquet", {"prompt": ["NA", "a\u2028b"], "tests": [["x"], None], "n": [7, 8]})
    assert make_files(path)().train == [
        {"prompt": "NA", "tests": ["x"], "n": 7},
        {"prompt": "a\u2028b", "tests": None, "n": 8},
    ]


def test_folders_named_like_a_partition_add_no_column_to_parquet_rows(tmp_path):
    path = write_parquet(tmp_path / "key=1" / "data.parquet", {"prompt": ["a"]})
    assert make_files(path)().train == [{"prompt": "a"}]


@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "data.csv", "data.parquet"])
def test_changed_content_is_read_fresh_even_under_an_unchanged_time_stamp(tmp_path, name):
    contents = {
        "data.jsonl": '{{"prompt": "{}"}}',
        "data.json": '[{{"prompt": "{}"}}]',
        "data.csv": "prompt\n{}\n",
    }
    path = tmp_path / name
    for text in ["old", "new"]:
        if name == "data.parquet":
            write_parquet(path, {"prompt": [text]})
        else:
            written(tmp_path, name, contents[name].format(text))
        os.utime(path, (1, 1))
        assert make_files(path)().train == [{"prompt": text}]


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("data.jsonl", "", "data.jsonl is empty (0 bytes); write rows into it or set dataset.path"),
        ("data.json", "", "data.json is empty (0 bytes); write rows into it or set dataset.path"),
        ("data.csv", "", "data.csv is empty (0 bytes); write rows into it or set dataset.path"),
        ("data.parquet", "", "data.parquet is empty (0 bytes); write rows into it or set dataset.path"),
        ("data.jsonl", "\n \r\n\n", "data.jsonl has no rows, only blank lines"),
        ("data.json", " \n", "data.json has no rows, only blank lines"),
        ("data.json", "[]", "data.json has no rows, only an empty list"),
        ("data.csv", "\n\n", "data.csv has no rows, only blank lines"),
        ("data.csv", "prompt,answer\n", "data.csv has no rows, only a header"),
        ("data.csv", "prompt\n\n", "data.csv has no rows, only a header"),
    ],
)
def test_a_file_without_rows_says_which_kind_of_empty_it_is(tmp_path, name, content, reason):
    assert refusal(tmp_path, name, content) == reason


def test_a_parquet_file_without_rows_or_that_is_none_is_refused(tmp_path):
    import pyarrow

    path = write_parquet(tmp_path / "data.parquet", {"prompt": pyarrow.array([], pyarrow.string())})
    with pytest.raises(DataError, match=r"^data\.parquet has no rows, only a schema$"):
        make_files(path)()
    assert refusal(tmp_path, "data.parquet", "not parquet").startswith("data.parquet is not a readable Parquet file: ")
    whole = write_parquet(tmp_path / "data.parquet", {"prompt": ["a" * 100]}).read_bytes()
    assert "not a readable Parquet file" in refusal(tmp_path, "data.parquet", whole[: len(whole) // 2])


def test_a_broken_json_line_names_file_line_and_column(tmp_path):
    message = refusal(tmp_path, "data.jsonl", '{"prompt": "a"}\n\n{"prompt": \n')
    assert message == "line 3 of data.jsonl is not valid JSON: Expecting value at column 12"
    message = refusal(tmp_path, "data.json", '[{"prompt": "a"},\n {"prompt" "b"}]')
    assert message == "data.json is not valid JSON: Expecting ':' delimiter at line 2, column 12"


def test_json_lines_in_a_json_file_say_where_they_belong(tmp_path):
    message = refusal(tmp_path, "data.json", '{"prompt": "a"}\n{"prompt": "b"}\n')
    assert message.endswith("Extra data at line 2, column 1; one object per line belongs into a .jsonl file")


@pytest.mark.parametrize(
    ("content", "kind"), [('{"rows": []}', "an object"), ('"text"', "text"), ("7", "a number"), ("null", "null")]
)
def test_a_json_file_that_is_not_a_list_is_refused(tmp_path, content, kind):
    expected = f"data.json holds {kind}, not a list of rows; write [{{...}}, {{...}}]"
    assert refusal(tmp_path, "data.json", content) == expected


@pytest.mark.parametrize(
    ("value", "kind"), [('["a"]', "a list"), ('"a"', "text"), ("1.5", "a number"), ("true", "a boolean")]
)
def test_json_rows_that_are_not_objects_are_named(tmp_path, value, kind):
    said = f'is {kind}, not an object such as {{"prompt": "..."}}'
    assert refusal(tmp_path, "data.json", f'[{{"prompt": "a"}}, {value}]') == f"row 2 of data.json {said}"
    assert refusal(tmp_path, "data.jsonl", f'{{"prompt": "a"}}\n{value}') == f"line 2 of data.jsonl {said}"


def test_a_json_object_that_repeats_a_key_is_refused(tmp_path):
    message = refusal(tmp_path, "data.jsonl", '{"prompt": "a"}\n{"prompt": "b", "prompt": "c"}')
    assert message == "line 2 of data.jsonl cannot be read: the key 'prompt' appears more than once in one object"


@pytest.mark.parametrize("value", ["[" * 100_000, "1" * 5000], ids=["deep", "long number"])
def test_json_that_python_will_not_parse_is_a_short_error_too(tmp_path, value):
    message = refusal(tmp_path, "data.jsonl", f'{{"prompt": "a"}}\n{{"prompt": "b", "x": {value}}}')
    assert message.startswith("line 2 of data.jsonl")
    assert len(message) < 150


@pytest.mark.parametrize("header", ["prompt,answer,prompt", "prompt,,"])
def test_a_csv_header_that_repeats_a_name_is_refused(tmp_path, header):
    message = refusal(tmp_path, "data.csv", f"{header}\na,b,c\n")
    assert message.startswith("the header of data.csv has the column ")
    assert message.endswith(" more than once; rename one of them")


def test_a_parquet_file_that_repeats_a_column_name_is_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["prompt", "prompt"])
    pyarrow.parquet.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(DataError, match=r"^data\.parquet has the column 'prompt' more than once"):
        make_files(tmp_path / "data.parquet")()


@pytest.mark.parametrize(("row", "cells"), [("b,c,d", 3), ("b", 1)])
def test_csv_rows_longer_or_shorter_than_the_header_are_named(tmp_path, row, cells):
    message = refusal(tmp_path, "data.csv", f'prompt,answer\n"a\na",x\n{row}\n')
    assert message.startswith(f"row 2 of data.csv (line 4) has {cells} cells, the header has 2; ")


def test_a_csv_quote_that_is_never_closed_is_refused_where_it_opens(tmp_path):
    message = refusal(tmp_path, "data.csv", 'prompt,answer\na,b\n"c,d\ne,f\n')
    assert message.startswith("data.csv is not valid CSV from line 3 on: ")


def test_a_lone_carriage_return_outside_csv_quotes_is_refused_not_taken_for_a_row(tmp_path):
    message = refusal(tmp_path, "data.csv", "prompt\na\nb\rc\n")
    assert message.startswith("data.csv is not valid CSV from line 3 on: new-line character seen in unquoted field; ")


@pytest.mark.parametrize(
    ("name", "content", "offset"),
    [
        ("data.jsonl", b'{"prompt": "a\xe9"}\n', 13),
        ("data.json", b'[{"prompt": "\xff"}]', 13),
        ("data.csv", b"prompt\nab\xe9\n", 9),
        ("data.csv", b"\xef\xbb\xbfprompt\nab\xe9\n", 12),  # three bytes of the byte order mark count
        ("data.jsonl", b'{"prompt": "\xed\xa0\x80"}\n', 12),  # a surrogate has no UTF-8 form
    ],
)
def test_bytes_that_are_not_utf8_name_the_file_and_the_offset(tmp_path, name, content, offset):
    expected = f"{name} is not UTF-8 text: byte 0x{content[offset]:02x} at byte offset {offset}; save the file as UTF-8"
    assert refusal(tmp_path, name, content) == expected


def test_a_missing_file_a_folder_and_an_unknown_suffix_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder.jsonl").mkdir()
    written(tmp_path, "data.txt", "a")
    with pytest.raises(DataError, match=r"^dataset\.path=no\.jsonl does not exist \(working folder .*\)$"):
        make_files("no.jsonl")()
    with pytest.raises(DataError, match=r"^dataset\.path=folder\.jsonl is a folder; .* dataset=hub dataset\.name=fold"):
        make_files("folder.jsonl")()
    with pytest.raises(DataError, match=r"unknown suffix '\.txt'; known are \.jsonl, \.ndjson, \.json, \.csv, \.parq"):
        make_files("data.txt")()
    with pytest.raises(DataError, match=r"^dataset\.path=x+\.csv cannot be read: File name too long$"):
        make_files("x" * 300 + ".csv")()
    ten_rows(tmp_path)
    with pytest.raises(DataError, match=r"^dataset\.eval_path=no\.csv does not exist"):
        make_files("data.jsonl", eval_path="no.csv")()


def test_paths_are_relative_to_the_working_folder_and_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    ten_rows(tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert make_files("home/data.jsonl")() == make_files("~/data.jsonl")()
    assert len(make_files("~/data.jsonl")().train) == 10


# --- prompts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("data.csv", "prompt,n\na,1\n,2\n", "has an empty 'prompt'"),
        ("data.csv", "prompt\na\n\nb\n", "has an empty 'prompt'"),  # one column: the blank line is a cell
        ("data.csv", 'prompt\na\n""\n', "has an empty 'prompt'"),
        ("data.jsonl", '{"prompt": "a"}\n{"prompt": " \\n\\u2028"}\n', "has an empty 'prompt'"),
        ("data.jsonl", '{"prompt": "a"}\n{"text": "b"}\n', "has no 'prompt'"),
        ("data.jsonl", '{"prompt": "a"}\n{"prompt": null}\n', "has no 'prompt'"),
        ("data.json", '[{"prompt": "a"}, {"prompt": 7}]', "has a 'prompt' that is not text but int 7"),
        ("data.json", '[{"prompt": "a"}, {"prompt": ["x"]}]', "has a 'prompt' that is not text but list ['x']"),
    ],
)
def test_an_unusable_prompt_is_reported_by_row(tmp_path, name, content, problem):
    expected = f"row 2 of {name} {problem}, needed by every task; fill it in or remove the row"
    assert refusal(tmp_path, name, content) == expected


def test_an_unusable_prompt_is_reported_with_the_column_it_comes_from_and_the_row_of_the_file(tmp_path):
    content = "question\n" + "a\n" * 3 + '""\n'
    message = refusal(tmp_path, "data.csv", content, columns={"prompt": "question"}, eval_fraction=0.25)
    assert message.startswith("row 4 of data.csv has an empty 'prompt', needed by every task (column 'question')")


def test_required_fields_are_reported_by_row_when_absent_or_none_before_anything_runs():
    rows = [{"prompt": "a", "tests": ["x"]}, {"prompt": "b"}]
    with pytest.raises(DataError, match=r"^row 2 of data\.jsonl has no 'tests', needed by reward code_pair$"):
        require_fields(rows, ["prompt", "tests"], source="data.jsonl", why="needed by reward code_pair")
    with pytest.raises(DataError, match=r"^row 5 of x has no 'tests', w$"):
        require_fields([{"tests": None}], ["tests"], source="x", why="w", first_row=5)


def test_required_fields_other_than_the_prompt_may_hold_any_value():
    require_fields([{"tests": "", "n": 0, "flag": False}], ["tests", "n", "flag"], source="x", why="w")


# --- columns --------------------------------------------------------------------------------------------------


def test_mapped_columns_appear_under_our_name_and_all_others_under_their_own(tmp_path):
    content = '{"question": "q1", "answer": "a1", "n": 1}\n{"question": "q2", "n": 2}\n'
    rows = train_rows(tmp_path, "data.jsonl", content, columns={"prompt": "question", "target": "answer"})
    assert rows == [{"prompt": "q1", "target": "a1", "n": 1}, {"prompt": "q2", "n": 2}]


def test_two_of_our_names_may_share_a_column_and_swap_columns(tmp_path):
    content = "prompt,answer\np,a\n"
    assert train_rows(tmp_path, "data.csv", content, columns={"prompt": "answer", "answer": "prompt"}) == [
        {"prompt": "a", "answer": "p"}
    ]
    assert train_rows(tmp_path, "data.csv", content, columns={"prompt": "prompt", "copy": "prompt"}) == [
        {"prompt": "p", "copy": "p", "answer": "a"}
    ]


def test_a_row_without_the_mapped_column_does_not_fall_back_to_a_column_of_our_name(tmp_path):
    content = '{"question": "q", "prompt": "other"}\n{"prompt": "other"}\n'
    message = refusal(tmp_path, "data.jsonl", content, columns={"prompt": "question"})
    assert message.startswith("row 2 of data.jsonl has no 'prompt'")


def test_columns_without_an_entry_for_the_prompt_mean_the_column_of_that_name(tmp_path):
    rows = train_rows(tmp_path, "data.csv", "prompt,answer\np,a\n", columns={"target": "answer"})
    assert rows == [{"prompt": "p", "target": "a"}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.jsonl", '{"question": "q", "answer": "a"}'),
        ("data.json", '[{"question": "q"}, {"answer": "a"}]'),
        ("data.csv", "question,answer\nq,a\n"),
    ],
)
def test_a_missing_column_lists_those_there_are_and_the_override_to_set(tmp_path, name, content):
    assert refusal(tmp_path, name, content) == (
        f"column 'prompt' not found in {name}; the file has question, answer; set dataset.columns.prompt=question"
    )


@pytest.mark.parametrize(
    ("columns", "header", "way_out"),
    [
        ({"prompt": "prompt"}, "id,Prompt,question", "set dataset.columns.prompt=Prompt"),
        ({"prompt": "promt"}, "question,prompt", "set dataset.columns.prompt=prompt"),
        ({"prompt": "x"}, "id,Instruction", "set dataset.columns.prompt=Instruction"),
        ({"prompt": "prompt", "tests": "test"}, "prompt,tests", "set ++dataset.columns.tests=tests"),
        ({"prompt": "prompt"}, "sentence", "set dataset.columns.prompt=sentence"),
        ({"prompt": "prompt"}, "first,second", "set dataset.columns.prompt to one of them"),
        ({"prompt": "prompt"}, "prompt;answer", "set dataset.columns.prompt to one of them"),
    ],
)
def test_the_suggested_column_is_the_most_plausible_one_or_none(tmp_path, columns, header, way_out):
    cells = ",".join("x" for _ in header.split(","))
    message = refusal(tmp_path, "data.csv", f"{header}\n{cells}\n", columns=columns)
    assert message.rpartition("; ")[2] == way_out


@pytest.mark.parametrize("column", [" prompt", "prompt:", "prömpt", "prompt=", "{prompt", "(prompt)", "prompt #"])
def test_the_suggested_override_pastes_back_as_the_very_column(tmp_path, column):
    message = refusal(tmp_path, "data.json", json.dumps([{column: "x", "id": 1}]))
    (argument,) = shlex.split(message.rpartition("; set ")[2])
    (override,) = OverridesParser.create().parse_overrides([argument])
    assert (override.key_or_group, override.value()) == ("dataset.columns.prompt", column)


def test_a_column_named_like_a_hydra_word_is_suggested_in_quotes(tmp_path):
    message = refusal(tmp_path, "data.json", json.dumps([{"null": "x", "id": 1}]), columns={"prompt": "nul"})
    assert message.endswith("""set 'dataset.columns.prompt="null"'""")


def test_a_long_list_of_columns_is_cut_and_control_characters_are_not_printed(tmp_path):
    row = {"\x1b[31m": 1} | {f"c{i}": i for i in range(30)}
    message = refusal(tmp_path, "data.json", json.dumps([row]))
    assert r"has '\x1b[31m', c0, c1," in message
    assert "c18 and 11 more; " in message  # 31 columns, 20 shown


# --- which rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eval_fraction", "max_tasks", "num_train", "eval_prompts"),
    [
        (0.0, None, 10, []),
        (0.2, None, 8, ["p9", "p10"]),
        (0.16, None, 8, ["p9", "p10"]),  # round(1.6) = 2
        (0.01, None, 9, ["p10"]),  # round(0.1) = 0, but at least one
        (0.2, 3, 3, ["p9", "p10"]),
        (0.2, 100, 8, ["p9", "p10"]),
        (0.9, None, 1, [f"p{i}" for i in range(2, 11)]),
    ],
)
def test_the_last_rows_are_evaluated_and_the_first_of_the_others_are_trained_on(
    tmp_path, eval_fraction, max_tasks, num_train, eval_prompts
):
    splits = make_files(ten_rows(tmp_path), eval_fraction=eval_fraction, max_tasks=max_tasks)()
    assert prompts(splits.train) == [f"p{i}" for i in range(1, num_train + 1)]
    assert prompts(splits.eval) == eval_prompts


def test_a_second_file_is_evaluated_whole_under_the_same_columns(tmp_path):
    train = written(tmp_path, "train.csv", "question\na\nb\nc\n")
    evaluated = written(tmp_path, "eval.jsonl", '{"question": "x"}\n{"question": "y"}\n')
    splits = make_files(train, eval_path=evaluated, columns={"prompt": "question"}, max_tasks=1)()
    assert (splits.train, splits.eval) == ([{"prompt": "a"}], [{"prompt": "x"}, {"prompt": "y"}])


def test_a_bad_evaluation_file_is_told_apart_from_the_training_file(tmp_path):
    train = ten_rows(tmp_path)
    bad = written(tmp_path / "other", "data.jsonl", '{"prompt": "a"}\n{"prompt": ""}\n')
    with pytest.raises(DataError, match=r"^row 2 of data\.jsonl \(dataset\.eval_path\) has an empty 'prompt'"):
        make_files(train, eval_path=bad)()
    written(tmp_path / "other", "data.jsonl", "")
    with pytest.raises(DataError, match=r"^data\.jsonl \(dataset\.eval_path\) is empty \(0 bytes\)"):
        make_files(train, eval_path=bad)()


@pytest.mark.parametrize(("num_rows", "eval_fraction"), [(1, 0.1), (10, 0.96)])
def test_evaluation_rows_that_leave_none_to_train_on_are_an_error(tmp_path, num_rows, eval_fraction):
    message = refusal(tmp_path, "data.csv", "prompt\n" + "a\n" * num_rows, eval_fraction=eval_fraction)
    assert message.startswith(f"dataset.eval_fraction={eval_fraction} takes all rows of data.csv ({num_rows}) for eval")


@pytest.mark.parametrize("eval_fraction", [1.5, 1.0, -0.1, float("nan")])
def test_an_evaluation_fraction_out_of_range_is_a_configuration_error(eval_fraction):
    expected = rf"^dataset\.eval_fraction must be in \[0, 1\), got {eval_fraction}$"
    for make in [lambda **s: Stories(None, **s), lambda **s: make_files("x", **s), lambda **s: make_hub("x", **s)]:
        with pytest.raises(ConfigError, match=expected):
            make(eval_fraction=eval_fraction)


@pytest.mark.parametrize("max_tasks", [0, -1])
def test_max_tasks_below_one_is_a_configuration_error(max_tasks):
    expected = rf"^dataset\.max_tasks must be >= 1, or null for all rows, got {max_tasks}$"
    for make in [
        lambda m: Stories(m, 0.0),
        lambda m: make_files("x", max_tasks=m),
        lambda m: make_hub("x", max_tasks=m),
    ]:
        with pytest.raises(ConfigError, match=expected):
            make(max_tasks)


def test_choosing_evaluation_rows_in_two_ways_is_a_configuration_error():
    with pytest.raises(ConfigError, match=r"^dataset\.eval_path=b\.csv and dataset\.eval_fraction=0\.1 both choose"):
        make_files("a.csv", eval_path="b.csv", eval_fraction=0.1)
    with pytest.raises(ConfigError, match=r"set dataset\.eval_fraction=0 or dataset\.eval_split=null$"):
        make_hub("a", eval_split="test", eval_fraction=0.1)


def test_empty_names_are_a_configuration_error():
    with pytest.raises(ConfigError, match=r"^dataset\.path must name a file"):
        make_files("")
    with pytest.raises(ConfigError, match=r"^dataset\.eval_path must name a file"):
        Files("a.csv", "", 0.0, {}, None)
    with pytest.raises(ConfigError, match=r"^dataset\.name must name a hub dataset or a folder"):
        make_hub("")


# --- hub ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    ten_rows(tmp_path, "set/train.jsonl")
    written(tmp_path, "set/test.jsonl", '{"prompt": "t1"}\n{"prompt": "t2"}\n')
    return tmp_path / "set"


def test_a_local_folder_loads_with_its_splits_and_slices(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    splits = make_hub("set", split="train[:30%]", eval_split="test", max_tasks=2)()
    assert (prompts(splits.train), prompts(splits.eval)) == (["p1", "p2"], ["t1", "t2"])


def test_a_local_folder_splits_by_fraction_and_maps_columns(tmp_path):
    write_parquet(tmp_path / "set" / "train-0.parquet", {"question": ["a", "b", "c"], "n": [1, None, 3]})
    splits = make_hub(tmp_path / "set", eval_fraction=0.4, columns={"prompt": "question"})()
    assert splits.train == [{"prompt": "a", "n": 1}, {"prompt": "b", "n": None}]
    assert splits.eval == [{"prompt": "c", "n": 3}]  # round(0.4 * 3) = 1


def test_a_local_folder_is_read_fresh_even_under_an_unchanged_time_stamp(folder):
    for text in ["old", "new"]:
        path = written(folder, "train.jsonl", json.dumps({"prompt": text}))
        os.utime(path, (1, 1))
        assert prompts(make_hub(folder)().train) == [text]


def test_csv_cells_of_a_local_folder_stay_text(tmp_path):
    written(tmp_path, "set/train.csv", "prompt,answer,n\nnull,NA,007\nNone,,008\n1e5,TRUE,009\n")
    written(tmp_path, "set/test.csv", "prompt,answer,n\nx,y,z\n")
    splits = make_hub(tmp_path / "set", eval_split="test")()
    assert splits.train == [
        {"prompt": "null", "answer": "NA", "n": "007"},
        {"prompt": "None", "answer": "", "n": "008"},
        {"prompt": "1e5", "answer": "TRUE", "n": "009"},
    ]
    assert splits.eval == [{"prompt": "x", "answer": "y", "n": "z"}]


def test_tab_separated_cells_that_look_missing_stay_text_too(tmp_path):
    written(tmp_path, "set/train.tsv", "prompt\tanswer\nNA\tx\nb\tnull\n")
    rows = make_hub(tmp_path / "set")().train
    assert rows == [{"prompt": "NA", "answer": "x"}, {"prompt": "b", "answer": "null"}]


def test_csv_rows_of_the_wrong_length_are_refused_in_a_local_folder_too(tmp_path):
    written(tmp_path, "set/train.csv", "prompt,answer\na,b,c\n")
    with pytest.raises(DataError, match=r"^row 1 of train\.csv \(line 2\) has 3 cells, the header has 2"):
        make_hub(tmp_path / "set")()


def test_an_unknown_split_is_told_with_the_splits_there_are(folder):
    with pytest.raises(DataError, match=r"dataset\.split=tran cannot be loaded: .*\['train', 'test'\]"):
        make_hub(folder, split="tran")()
    with pytest.raises(DataError, match=r"dataset\.eval_split=val cannot be loaded: .*\['train', 'test'\]"):
        make_hub(folder, eval_split="val")()


@pytest.mark.parametrize("split", ["train[:0]", "tr[ain", ""])
def test_a_split_that_is_empty_or_malformed_is_a_short_error(folder, split):
    with pytest.raises(DataError) as caught:
        make_hub(folder, split=split)()
    assert f"dataset.split={split} cannot be loaded: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_or_missing_configuration_is_told_with_those_there_are(tmp_path):
    readme = (
        "---\nconfigs:\n- config_name: one\n  data_files: a.jsonl\n- config_name: two\n  data_files: b.jsonl\n---\n"
    )
    written(tmp_path, "set/README.md", readme)
    written(tmp_path, "set/a.jsonl", '{"prompt": "a"}')
    written(tmp_path, "set/b.jsonl", '{"prompt": "b"}')
    assert prompts(make_hub(tmp_path / "set", config="two")().train) == ["b"]
    for config in ["three", None]:
        with pytest.raises(DataError, match=rf"dataset\.config={config or 'null'} .*\['one', 'two'\]"):
            make_hub(tmp_path / "set", config=config)()


def test_unusable_prompts_and_columns_of_a_split_are_reported_by_row(folder):
    written(folder, "train.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": " "}\n')
    with pytest.raises(DataError, match=rf"^row 3 of {folder} \(split train\) has an empty 'prompt'"):
        make_hub(folder, eval_fraction=0.3)()
    with pytest.raises(
        DataError, match=r"column 'q' not found in .*; the split has prompt; set dataset\.columns\.prom"
    ):
        make_hub(folder, columns={"prompt": "q"})()


def test_names_that_are_a_file_a_missing_path_or_a_saved_dataset_are_refused(folder):
    with pytest.raises(DataError, match=r"is a file; use dataset=files dataset\.path="):
        make_hub(folder / "train.jsonl")()
    with pytest.raises(DataError, match=r"^dataset\.name=\./nowhere does not exist"):
        make_hub("./nowhere")()
    written(folder, "state.json", "{}")
    with pytest.raises(DataError, match=r"written by save_to_disk; write it with to_parquet and use dataset=files$"):
        make_hub(folder)()


def test_broken_files_and_empty_folders_are_short_errors(folder):
    written(folder, "train.jsonl", '{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(DataError, match=r"cannot be loaded: JSON parse error"):
        make_hub(folder)()
    (folder.parent / "empty").mkdir()
    with pytest.raises(DataError, match=r"cannot be loaded: The directory .* doesn't contain any data files$"):
        make_hub(folder.parent / "empty")()


def test_no_connection_and_an_unknown_name_are_short_errors_with_a_way_out(monkeypatch):
    import datasets

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        DataError, match=r"cannot be fetched.*`hf download no/such --repo-type dataset .*dataset=files$"
    ):
        make_hub("no/such")()

    def not_found(path, **_):
        raise datasets.exceptions.DatasetNotFoundError(f"Dataset '{path}' doesn't exist on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", not_found)
    with pytest.raises(DataError, match=r"^dataset\.name=no/such is not on the hub, or is private; .*dataset=files$"):
        make_hub("no/such")()
