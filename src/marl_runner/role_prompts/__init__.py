"""Role prompts of the public tasks, one text file for each agent: `<task>/chat_0.txt`, `<task>/plain_0.txt`, ….

The `chat` texts are a user's message to a model with a chat template; the `plain` ones end where a base model goes on
with the answer. All are our own.
"""

from __future__ import annotations

from importlib import resources

from marl_runner.errors import ConfigError


def role_prompts(name: str, chat_template: bool) -> list[str]:
    """The role prompts of a task, one for each agent, for `agents.role_prompts`.

    In YAML: `role_prompts: ${role_prompts:code_pair,${agents.chat_template}}`.

    Args:
        name: The task: `code_pair`, `writing_tldr` or `writing_arxiv`.
        chat_template: True for the texts of a chat, False for those that a base model continues.

    Raises:
        ConfigError: There is no such task.
    """
    tasks = {folder.name: folder for folder in resources.files(__name__).iterdir() if (folder / "chat_0.txt").is_file()}
    if name not in tasks:
        raise ConfigError(f"there are no role prompts '{name}'; there are {', '.join(sorted(tasks))}")
    kind = "chat" if chat_template else "plain"
    files = sorted((file for file in tasks[name].iterdir() if file.name.startswith(kind)), key=lambda file: file.name)
    # The newline that ends a file is no part of the text: a base model would begin its answer after it.
    return [file.read_text(encoding="utf-8").removesuffix("\n") for file in files]
