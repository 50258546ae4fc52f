"""Behaviours of formatters and prompt encoding that these tests protect.

1. A formatter gets the row, at later turns with the transition's prompt in it, and never the task itself.
2. What a formatter does wrong is told with the formatter, the row and the agent, before any model loads.
3. The chat template is the model's own; a model without one, or one that refuses a system role, is named.
4. A prompt has one beginning-of-sequence token at most, whoever writes it.
"""

import functools
import re

import pytest

from marl_runner.agents.pretrained import Pretrained
from marl_runner.errors import ConfigError, DataError
from marl_runner.formatters.call import PromptFormatter, per_agent, row_prompt
from marl_runner.formatters.chat import ChatFormatter
from marl_runner.formatters.role import RoleFormatter
from marl_runner.loading import load_tokenizer
from marl_runner.policies.hf import encode_prompt
from marl_runner.settings import MAGRPOConfig
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.trainers.sources import Source
from marl_runner.types import Task
from models import BOS, EOS, A, saved, tiny_llama, tiny_policy, tiny_tokenizer
from scripted_team import Recorder

CHAT = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
CHAT_WITH_BOS = "{{ bos_token }}" + CHAT
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHAT
)
TASK = Task("7", {"prompt": "abc", "level": 3})


def pretrained(model, **settings):
    values = {
        "models": None,
        "num_agents": 2,
        "dtype": "float32",
        "attn_implementation": None,
        "chat_template": False,
        "system_prompt": None,
        "role_prompts": None,
        "special_tokens": {},
    }
    return Pretrained(model=str(model), **(values | settings))


def trainer_of(source, rows):
    """A trainer on the team of an agents option."""
    return MAGRPOTrainer(
        agents=source.agents,
        tokenizer=source.tokenizer,
        formatters=source.formatters,
        model_config=source.model_config,
        reward_func=lambda *texts: [0.0],
        train_dataset=rows,
        args=MAGRPOConfig(num_turns=1, max_new_tokens=4, agent_devices="cpu"),
        tracker=Recorder(),
    )


# --- a user's formatter ---------------------------------------------------------------------------------------


def test_without_a_formatter_the_prompt_of_the_row_is_sent_as_it_is():
    assert PromptFormatter(None, 0, passthrough=False)(TASK) == "abc"
    assert PromptFormatter(None, 0, passthrough=False)(TASK, "next") == "next"


def test_a_formatter_gets_the_whole_row():
    formatter = PromptFormatter(lambda row: f"{row['prompt']}/{row['level']}", 0, passthrough=False)
    assert formatter(TASK) == "abc/3"


def test_a_transition_s_prompt_takes_the_place_of_the_row_s_and_leaves_the_task_alone():
    def formatter(row):
        text = f"{row['prompt']}/{row['level']}"
        row.clear()
        return text

    assert PromptFormatter(formatter, 0, passthrough=False)(TASK, "next") == "next/3"
    assert TASK.fields == {"prompt": "abc", "level": 3}


def test_a_formatter_that_names_external_prompts_receives_it_at_later_turns_only():
    def named(row, external_prompts="first"):
        return f"{row['prompt']}|{external_prompts}"

    def keywords(row, **context):
        return f"{row['prompt']}|{context.get('external_prompts', 'first')}"

    for function in (named, keywords, functools.partial(named)):
        formatter = PromptFormatter(function, 0, passthrough=False)
        assert (formatter(TASK), formatter(TASK, "next")) == ("abc|first", "next|next")


def test_passthrough_sends_the_transition_s_prompt_past_the_formatter():
    formatter = PromptFormatter(lambda row: f"<{row['prompt']}>", 0, passthrough=True)
    assert (formatter(TASK), formatter(TASK, "next")) == ("<abc>", "next")


def test_a_formatter_that_raises_is_named_with_agent_and_task():
    def broken(row):
        return row["absent"]

    with pytest.raises(DataError) as caught:
        PromptFormatter(broken, 1, passthrough=False)(TASK)
    assert re.search(
        r"broken of agent 1 raised KeyError: 'absent' at test_formatters.py:\d+ \(task 7\)", str(caught.value)
    )
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(("value", "kind"), [(None, "NoneType"), (5, "int"), (["abc"], "list"), (b"abc", "bytes")])
def test_a_formatter_that_returns_no_text_is_named_with_agent_task_and_type(value, kind):
    with pytest.raises(DataError, match=rf"of agent 0 returned {kind}, expected text \(task 7\)"):
        PromptFormatter(lambda row: value, 0, passthrough=False)(TASK)


def test_a_row_without_a_prompt_names_the_columns_it_has():
    with pytest.raises(DataError, match="the row has no 'prompt' but question, level; pass formatters="):
        PromptFormatter(None, 0, passthrough=False)(Task("1", {"question": "abc", "level": 3}))


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(ConfigError, match="formatter must be callable, got 'upper'"):
        PromptFormatter("upper", 0, passthrough=False)


def test_one_formatter_serves_all_agents_and_a_list_gives_each_its_own():
    def shout(row):
        return row["prompt"].upper()

    task = Task("1", {"prompt": "abc"})
    for formatters, texts in ((None, ["abc", "abc"]), (shout, ["ABC", "ABC"]), ([row_prompt, shout], ["abc", "ABC"])):
        assert [formatter(task) for formatter in per_agent(formatters, 2, False)] == texts
    with pytest.raises(ConfigError, match="formatters has 1 entries, but the team has 2 agents"):
        per_agent([row_prompt], 2, False)


# --- roles ----------------------------------------------------------------------------------------------------


def test_a_role_puts_the_prompt_in_its_place_and_leaves_other_braces_alone():
    role = RoleFormatter('Answer {"x": {prompt}} to {prompt}')
    assert role({"prompt": "{prompt}{0}"}) == 'Answer {"x": {prompt}{0}} to {prompt}{0}'


def test_a_role_may_name_any_column_and_what_is_put_in_is_not_read_again():
    role = RoleFormatter("Write {entry_point} in {level} lines, as {{name}}: {prompt}")
    assert role({"prompt": "{level}", "entry_point": "f", "level": 3}) == "Write f in 3 lines, as {name}: {level}"


def test_a_role_that_names_no_column_or_an_empty_one_says_so_and_how_braces_are_written():
    formatter = PromptFormatter(RoleFormatter("{prompt} {result}"), 0, False)
    for row in ({"prompt": "p"}, {"prompt": "p", "result": None}):
        with pytest.raises(
            DataError, match=r"the row has no 'result' but prompt.*; write \{\{result\}\} for the braces"
        ):
            formatter(Task("1", row))


def test_a_role_without_a_place_for_the_prompt_is_refused():
    with pytest.raises(ConfigError, match=r"'Answer \{\}' has no \{prompt\} or other column in it"):
        RoleFormatter("Answer {}")


def test_a_role_says_which_columns_a_row_without_a_prompt_has():
    with pytest.raises(DataError, match="the row has no 'prompt' but question"):
        PromptFormatter(RoleFormatter("{prompt}!"), 0, passthrough=False)(Task("1", {"question": "abc"}))


def test_each_agent_has_its_own_role(tmp_path):
    source = pretrained(saved(tmp_path), role_prompts=["a {prompt}", "b {prompt}"])(seed=0)
    assert [formatter({"prompt": "c"}) for formatter in source.formatters] == ["a c", "b c"]


# --- chat -----------------------------------------------------------------------------------------------------


def test_the_chat_template_is_rendered_around_the_inner_text_and_ready_for_the_answer():
    tokenizer = tiny_tokenizer(chat_template=CHAT)
    assert ChatFormatter(tokenizer, row_prompt, None)({"prompt": "abc"}) == "u:abc</s>a:"
    assert ChatFormatter(tokenizer, row_prompt, "be")({"prompt": "abc"}) == "s:be</s>u:abc</s>a:"
    assert ChatFormatter(tokenizer, RoleFormatter("I {prompt}"), None)({"prompt": "abc"}) == "u:I abc</s>a:"


def test_an_empty_system_prompt_is_a_system_message_all_the_same():
    tokenizer = tiny_tokenizer(chat_template=CHAT)
    assert ChatFormatter(tokenizer, row_prompt, "")({"prompt": "abc"}) == "s:</s>u:abc</s>a:"


def test_a_model_without_a_chat_template_is_named_with_the_two_ways_out(tmp_path):
    folder = saved(tmp_path / "base")
    with pytest.raises(ConfigError) as caught:
        pretrained(folder, chat_template=True)(seed=0)
    assert str(caught.value) == (
        f"agents.chat_template=true, but the tokenizer of {folder} has none: "
        "set agents.chat_template=false, or name an instruction-tuned model"
    )


def test_a_template_that_refuses_a_system_role_is_told_with_row_and_agent_before_weights_load(tmp_path):
    folder = tmp_path / "strict"
    saved(folder, tokenizer=tiny_tokenizer(chat_template=NO_SYSTEM))
    (folder / "model.safetensors").unlink()
    source = pretrained(folder, chat_template=True, system_prompt="be")(seed=0)
    with pytest.raises(DataError) as caught:
        trainer_of(source, [{"prompt": "abc"}])
    assert "row 1, agent 0" in str(caught.value)
    assert f"of {folder} refuses: System role not supported; set agents.system_prompt=null" in str(caught.value)
    with pytest.raises(ConfigError, match=r"no file named model\.safetensors"):
        trainer_of(pretrained(folder, chat_template=True)(seed=0), [{"prompt": "abc"}])


# --- one beginning of sequence --------------------------------------------------------------------------------


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [CHAT, CHAT_WITH_BOS])
def test_a_chat_prompt_has_one_beginning_of_sequence_whether_template_or_tokenizer_writes_it(adds_bos, template):
    tokenizer = tiny_tokenizer(adds_bos=adds_bos, chat_template=template)
    text = ChatFormatter(tokenizer, row_prompt, None)({"prompt": "abc"})
    token_ids = encode_prompt(tokenizer, text)
    written = int(adds_bos or template is CHAT_WITH_BOS)
    assert token_ids.count(BOS) == written
    assert token_ids[:written] == (BOS,) * written
    assert token_ids.count(EOS) == 1


def test_a_plain_prompt_has_the_beginning_of_sequence_that_its_tokenizer_adds():
    assert encode_prompt(tiny_tokenizer(adds_bos=True), "ab") == (BOS, A, A + 1)
    assert encode_prompt(tiny_tokenizer(adds_bos=True), "<s>ab") == (BOS, A, A + 1)
    assert encode_prompt(tiny_tokenizer(adds_bos=False), "ab") == (A, A + 1)
    assert encode_prompt(tiny_tokenizer(adds_bos=False), "<s>ab") == (BOS, A, A + 1)


def test_a_tokenizer_without_a_beginning_of_sequence_adds_none():
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = None
    assert encode_prompt(tokenizer, "ab") == (A, A + 1)


def test_prompts_are_neither_cut_nor_padded_by_what_a_tokenizer_was_saved_with(tmp_path):
    tokenizer = tiny_tokenizer(padding_side="right")
    tokenizer.backend_tokenizer.enable_truncation(max_length=3)
    tokenizer.backend_tokenizer.enable_padding(length=12)
    tokenizer.model_max_length = 4
    loaded = load_tokenizer(saved(tmp_path, tokenizer=tokenizer))
    assert loaded.backend_tokenizer.truncation is not None
    assert encode_prompt(loaded, "abcdef") == tuple(range(A, A + 6))


def test_the_check_before_loading_and_the_loaded_policy_encode_alike():
    for adds_bos in (True, False):
        tokenizer = tiny_tokenizer(adds_bos=adds_bos)
        policy = tiny_policy(tokenizer=tokenizer)
        for text in ("abc", "<s>abc</s>", ""):
            assert Source(tiny_llama(), tokenizer, None).encode(text) == policy.encode(text)
            assert Source(policy, None, None).encode(text) == policy.encode(text)


@pytest.mark.parametrize(("text", "place"), [("\ud83d", 0), ("ab\udfff", 2), ("\U0001f600\udc00", 1)])
def test_a_lone_surrogate_is_refused_with_its_place(text, place):
    with pytest.raises(DataError, match=rf"lone surrogate '\\ud[0-9a-f]+' at character {place}, which no tokenizer"):
        encode_prompt(tiny_tokenizer(), text)


def test_a_surrogate_that_a_chat_template_carries_into_the_text_is_refused_with_row_and_agent(tmp_path):
    folder = saved(tmp_path, tokenizer=tiny_tokenizer(chat_template=CHAT))
    with pytest.raises(DataError, match="row 2, agent 0: the prompt holds the lone surrogate"):
        trainer_of(pretrained(folder, chat_template=True)(seed=0), [{"prompt": "a"}, {"prompt": "\ud800"}])


def test_whole_characters_beyond_the_first_plane_are_no_surrogates():
    assert encode_prompt(tiny_tokenizer(), "a\U0001f600") == (A, 3)
