"""Asks a language model behind an OpenAI-compatible chat-completions endpoint.

The package `openai` sends, retries and waits; it is imported when the first question is asked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from marl_runner.errors import ConfigError, TransitionError

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAIError

MOST_KEPT = 4096
"""Answers that are kept, the longest unused given up first."""
MOST_WAIT_S = 8.0
"""The longest wait before a retry, in seconds, where the endpoint asks for no other."""
MOST_SAID = 300
"""Characters of what an endpoint says that are put into a message."""
RETRY_HEADER = "x-stainless-retry-count"
"""In which `openai` numbers the tries of one request, from 0."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Endpoint:
    """Where the expert is, and how it is asked.

    Attributes:
        base_url: Address that `/chat/completions` is added to.
        api_key: Sent as a bearer token; None sends none.
        model: Name of the model there.
        temperature: >= 0; None leaves it to the endpoint.
        max_tokens: Most tokens of an answer, >= 1; None leaves it to the endpoint.
        timeout_s: Most seconds of silence in one try, > 0.
        max_retries: Tries after the first, >= 0.
    """

    base_url: str
    api_key: str | None = field(repr=False)
    model: str
    temperature: float | None
    max_tokens: int | None
    timeout_s: float
    max_retries: int

    @property
    def total_s(self) -> float:
        """Most seconds of one question, with all tries and all waits between them."""
        return self.timeout_s + self.max_retries * (self.timeout_s + MOST_WAIT_S)

    @property
    def is_local(self) -> bool:
        """Whether the address is this machine's own, which no proxy leads to."""
        host = urlsplit(self.base_url).hostname
        try:
            return host == "localhost" or ipaddress.ip_address(str(host)).is_loopback
        except ValueError:
            return False

    def failure(self, reason: str) -> TransitionError:
        """The error that says why a question has no answer, without the key, whoever repeats it."""
        said = reason if self.api_key is None else reason.replace(self.api_key, "***")
        line = " ".join(sendable(said).split())
        short = line if len(line) <= MOST_SAID else f"{line[:MOST_SAID]}…"
        return TransitionError(f"expert {self.model} at {self.base_url}: {short}")


class Expert:
    """The model behind an endpoint; any number of threads may ask it, one at a time is served.

    What was answered once is not asked again while it is among the last `MOST_KEPT` answers; failures are.

    Args:
        endpoint: Where it is.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._counts = dict.fromkeys(("calls", "cache_hits", "retries", "failures"), 0)

    @property
    def counts(self) -> dict[str, int]:
        """Questions (`calls`), those answered from memory or asked twice at once (`cache_hits`) or not at all
        (`failures`), and requests that were sent again (`retries`)."""
        return dict(self._counts)

    def ask(self, questions: Sequence[str]) -> list[str | TransitionError]:
        """The answer to each question, or why there is none; all are asked at the same time.

        Lone surrogates, which no request can hold, become U+FFFD in questions and answers. Takes at most
        `endpoint.total_s`. An exception that a signal raises ends the wait at once; requests under way are then
        left to a daemon thread, which ends within that time or with the process.
        """
        sent = [sendable(question) for question in questions]
        with self._lock:
            new = [question for question in dict.fromkeys(sent) if question not in self._kept]
            self._counts["calls"] += len(sent)
            self._counts["cache_hits"] += len(sent) - len(new)
            answers: dict[str, str | TransitionError] = {q: self._kept[q] for q in sent if q in self._kept}
            answers |= zip(new, in_a_thread(self._answers(new)) if new else [], strict=True)
            for question, answer in answers.items():
                if isinstance(answer, str):
                    self._kept[question] = answer
                    self._kept.move_to_end(question)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            self._counts["failures"] += sum(isinstance(answers[question], TransitionError) for question in sent)
        return [answers[question] for question in sent]

    async def _answers(self, questions: Sequence[str]) -> list[str | TransitionError]:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        for logger in map(logging.getLogger, ("httpx", "httpx2")):
            if logger.level == logging.NOTSET:
                # Each says every request at INFO, which would fill the console of a run.
                logger.setLevel(logging.WARNING)
        endpoint = self.endpoint
        client = AsyncOpenAI(
            base_url=endpoint.base_url,
            # None would send the variable OPENAI_API_KEY to whatever endpoint this is.
            api_key=endpoint.api_key or "none",
            timeout=endpoint.timeout_s,
            max_retries=endpoint.max_retries,
            http_client=DefaultAsyncHttpxClient(
                timeout=endpoint.timeout_s,
                trust_env=not endpoint.is_local,
                follow_redirects=False,
                event_hooks={"request": [self._count]},
            ),
        )
        async with client:
            return await asyncio.gather(*(self._answer(client, question) for question in questions))

    async def _count(self, request: Any) -> None:
        self._counts["retries"] += request.headers.get(RETRY_HEADER, "0") != "0"

    async def _answer(self, client: AsyncOpenAI, question: str) -> str | TransitionError:
        from openai import Omit, OpenAIError, omit

        endpoint = self.endpoint
        try:
            # Each read has its own time limit, so that an endpoint could answer a byte at a time for ever.
            async with asyncio.timeout(endpoint.total_s):
                answer = await client.chat.completions.with_raw_response.create(
                    model=endpoint.model,
                    messages=[{"role": "user", "content": question}],
                    temperature=omit if endpoint.temperature is None else endpoint.temperature,
                    max_tokens=omit if endpoint.max_tokens is None else endpoint.max_tokens,
                    extra_headers={"Authorization": Omit()} if endpoint.api_key is None else None,
                )
        except TimeoutError:
            return endpoint.failure(f"no whole answer in {endpoint.total_s:g} s")
        except OpenAIError as error:
            return endpoint.failure(reason(error, endpoint))
        return answer_text(endpoint, answer.http_response.content)


def answer_text(endpoint: Endpoint, body: bytes) -> str | TransitionError:
    """The text of a chat completion, or the failure where the body holds none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return endpoint.failure(f"the answer is not JSON: {body[:MOST_SAID].decode('utf-8', 'replace')!r}")
    try:
        text = answer["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        return endpoint.failure(f"the answer is no chat completion: {json.dumps(answer)}")
    if not isinstance(text, str) or not text.strip():
        return endpoint.failure(f"the answer holds no text: {json.dumps(answer['choices'][0])}")
    return sendable(text.strip())


def reason(error: OpenAIError, endpoint: Endpoint) -> str:
    """Why `openai` gave up, with the status if there is one."""
    from openai import APIConnectionError, APIStatusError, APITimeoutError

    if isinstance(error, APITimeoutError):
        return f"silent for {endpoint.timeout_s:g} s, tried {endpoint.max_retries + 1} times"
    if isinstance(error, APIStatusError):
        return f"status {error.status_code}: {error.response.text.strip() or 'without a word'}"
    if isinstance(error, APIConnectionError):
        return f"no connection: {type(error.__cause__).__name__}: {error.__cause__}"
    return f"{type(error).__name__}: {error}"


def in_a_thread(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine in a daemon thread, so that a signal ends the wait, and also where a loop runs already."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(asyncio.run(coroutine))
        except BaseException as error:  # noqa: BLE001  raised in the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, name="expert", daemon=True).start()
    return future.result()


def sendable(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which UTF-8 has no bytes for."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def check_address(base_url: str, key: str) -> None:
    """Refuses what is no address, or one that holds a secret.

    Raises:
        ConfigError: Naming `key`, the configuration key it came from; the address is not shown.
    """
    try:
        parts = urlsplit(base_url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not base_url.isprintable() or " " in base_url:
        raise ConfigError(f"{key} must be an address like http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(f"{key} must have no password, ? or #: put the key in a variable and name it in api_key_env")


def key_of(variable: str | None, key: str) -> str | None:
    """The key in an environment variable; None where none is named.

    Raises:
        ConfigError: Naming `key`, the configuration key; never the value, which may be the key itself by mistake.
    """
    if variable is None:
        return None
    value = os.environ.get(variable)
    if value is None:
        raise ConfigError(f"{key} names no environment variable that is set: export it, or null sends no key")
    if not re.fullmatch(r"[!-~]+", value):
        raise ConfigError(f"{key}: the variable is empty, or has spaces, line ends or letters that no key has")
    return value
