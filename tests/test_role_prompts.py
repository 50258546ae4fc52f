"""Behaviours of the role prompts that these tests protect.

1. Every task has one text for each of two agents, for a chat and for a base model, and every text shows the prompt.
2. The formatters take them: columns are filled in, nothing else in braces is left.
3. A configuration names a task, and gets the texts that fit its agents; an unknown task is refused.
"""

import re
from importlib import resources

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from commands import CHAT, composed, model_folder
from marl_runner.build import option
from marl_runner.config import check
from marl_runner.errors import ConfigError
from marl_runner.explain import explain
from marl_runner.formatters.chat import ChatFormatter
from marl_runner.formatters.role import PLACE, RoleFormatter
from marl_runner.policies.tiny import character_tokenizer
from marl_runner.role_prompts import role_prompts

TASKS = ["code_pair", "writing_arxiv", "writing_tldr"]
COLUMNS = {"code_pair": {"prompt", "entry_point"}, "writing_arxiv": {"prompt"}, "writing_tldr": {"prompt"}}
ROW = {"prompt": "def twice(x: int) -> int:\n    '''{x} times two'''\n", "entry_point": "twice"}
TEXTS = [(task, chat, agent) for task in TASKS for chat in (True, False) for agent in (0, 1)]


def test_the_tasks_are_these_and_each_has_four_texts():
    folders = [
        entry for entry in resources.files("marl_runner.role_prompts").iterdir() if (entry / "chat_0.txt").is_file()
    ]
    assert sorted(folder.name for folder in folders) == TASKS
    for folder in folders:
        names = sorted(file.name for file in folder.iterdir())
        assert names == ["chat_0.txt", "chat_1.txt", "plain_0.txt", "plain_1.txt"]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_has_four_different_texts_one_for_each_agent_and_kind(task):
    chat, plain = role_prompts(task, True), role_prompts(task, False)
    assert (len(chat), len(plain)) == (2, 2)
    assert len({*chat, *plain}) == 4


@pytest.mark.parametrize(("task", "chat", "agent"), TEXTS)
def test_a_text_shows_the_prompt_once_as_a_paragraph_and_names_only_columns_of_its_task(task, chat, agent):
    text = role_prompts(task, chat)[agent]
    assert text.count("\n\n{prompt}\n\n") == 1
    assert {column for _, column in PLACE.findall(text)} <= COLUMNS[task]
    assert text == text.strip()


@pytest.mark.parametrize(("task", "chat", "agent"), TEXTS)
def test_a_text_is_filled_with_the_row_and_keeps_what_the_row_has_in_braces(task, chat, agent):
    filled = RoleFormatter(role_prompts(task, chat)[agent])(ROW)
    assert ROW["prompt"] in filled
    assert re.findall(r"[{}]", filled.replace(ROW["prompt"], "")) == []
    assert ("twice" in filled.replace(ROW["prompt"], "")) == (task == "code_pair")


@pytest.mark.parametrize("task", TASKS)
def test_plain_texts_end_where_the_answer_begins_and_chat_texts_do_not(task):
    assert all(text.endswith(":") for text in role_prompts(task, False))
    assert not any(text.endswith(":") for text in role_prompts(task, True))


@pytest.mark.parametrize("chat", [True, False])
def test_of_a_code_pair_the_first_agent_writes_aux_and_the_second_the_entry_point(chat):
    helper, main = (RoleFormatter(text)(ROW).replace(ROW["prompt"], "") for text in role_prompts("code_pair", chat))
    assert helper.rpartition("twice")[2].find("aux") > 0  # the last that is asked for
    assert main.rfind("twice") > main.rfind("aux")


def test_a_chat_text_goes_through_a_chat_template():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = CHAT
    inner = RoleFormatter(role_prompts("code_pair", True)[1])
    assert ChatFormatter(tokenizer, inner, None)(ROW) == f"<user>{inner(ROW)}"


def test_an_unknown_task_is_refused_with_those_there_are():
    with pytest.raises(ConfigError) as caught:
        role_prompts("code_pairs", True)
    assert (
        str(caught.value) == "there are no role prompts 'code_pairs'; there are code_pair, writing_arxiv, writing_tldr"
    )


# --- in a configuration


@pytest.mark.parametrize("chat", [True, False])
def test_a_configuration_gets_the_texts_that_fit_its_agents(tmp_path, chat):
    model = model_folder(tmp_path / "model", chat=True)
    cfg = composed(
        "agents=pretrained",
        f"agents.model={model}",
        f"agents.chat_template={str(chat).lower()}",
        'agents.role_prompts="${role_prompts:writing_tldr,${agents.chat_template}}"',
    )
    check(cfg)
    assert OmegaConf.to_container(cfg.agents, resolve=True)["role_prompts"] == role_prompts("writing_tldr", chat)
    formatters = option("agents", cfg)(seed=0).formatters
    expected = [RoleFormatter(text)(ROW) for text in role_prompts("writing_tldr", chat)]
    assert [formatter(ROW) for formatter in formatters] == [f"<user>{text}" if chat else text for text in expected]


def test_an_unknown_task_in_a_configuration_is_one_sentence():
    override = "agents.role_prompts=${role_prompts:poems,true}"
    with pytest.raises(OmegaConfBaseException) as caught:
        OmegaConf.to_container(composed("agents=pretrained", override), resolve=True)
    sentence = explain(caught.value, (override,))
    assert "\n" not in sentence
    assert "there are no role prompts 'poems'; there are code_pair" in sentence


def test_a_team_of_another_size_is_refused():
    cfg = composed(
        "agents=pretrained",
        "agents.model=x",
        "agents.num_agents=3",
        "agents.role_prompts=${role_prompts:code_pair,true}",
    )
    with pytest.raises(ConfigError, match=r"^agents\.role_prompts has 2 entries, but agents\.num_agents=3$"):
        check(cfg)
