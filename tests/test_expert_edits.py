"""Edits by a model outside the team, asked over HTTP: a server of the test's own stands for the endpoint.

1. The expert sees the task and all answers, once per agent; the next prompt holds the agent's own answer and its edits.
2. What may pass is tried again and counted; what may not ends the run, or falls back, and is counted.
3. Every question ends in bounded time, whatever the endpoint does, and at once on a signal.
4. What was answered is not asked again.
5. The key is sent to the endpoint and shows nowhere else.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from commands import ROOT, composed, refused
from marl_runner import expert
from marl_runner.build import option
from marl_runner.config import check
from marl_runner.errors import ConfigError, TransitionError
from marl_runner.settings import MAGRPOConfig
from marl_runner.stopping import Stopped
from marl_runner.transitions.call import TransitionCaller
from marl_runner.transitions.expert_edits import ExpertEdits
from marl_runner.transitions.revise import Revise
from marl_runner.types import Task, Turn
from scripted_team import script, trainer_of

SHORT = {
    "model": "m",
    "expert_template": "{prompt}|{answers}|{agent}",
    "answer_template": "{agent}={answer}",
    "agent_template": "{prompt}|{answer}|{edits}",
    "fallback_template": "{prompt}|{answer}",
    "api_key_env": None,
    "temperature": 0.0,
    "max_tokens": 9,
    "timeout_s": 30.0,
    "max_retries": 0,
    "on_failure": "error",
}
SOON = {"retry-after-ms": "1"}
"""The header by which an endpoint says when to try again."""


def completion(content: object, **choice: object) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}, **choice}]}).encode()


class Endpoint(ThreadingHTTPServer):
    """Plays one function after the other, the last one for ever; keeps what it was sent.

    Attributes:
        sent: The bodies of the requests.
        headers: Their headers.
        released: Set at the end of the test, for plays that wait.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, *plays: Callable[[Request], None]) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.plays = list(plays)
        self.sent: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def questions(self) -> list[str]:
        return [body["messages"][0]["content"] for body in self.sent]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is what some tests are about."""


class Request(BaseHTTPRequestHandler):
    server: Endpoint
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.question = body["messages"][0]["content"]
        with self.server.lock:
            self.server.sent.append(body)
            self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
            play = self.server.plays.pop(0) if len(self.server.plays) > 1 else self.server.plays[0]
        play(self)

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Says nothing on stderr."""


def says(content: object, **choice: object) -> Callable[[Request], None]:
    return lambda request: request.answer(completion(content, **choice))


def status(code: int, body: bytes = b'{"error": "no"}', **headers: str) -> Callable[[Request], None]:
    return lambda request: request.answer(body, code, **{**SOON, **headers})


def edits_for_agent(request: Request) -> None:
    """The edits for agent 1 of a question that ends with "|1" are "e1"."""
    request.answer(completion(f"e{request.question.rpartition('|')[2]}"))


def never(request: Request) -> None:
    request.server.released.wait()


def hangs_up(request: Request) -> None:
    request.connection.shutdown(socket.SHUT_RDWR)


def drips_a_body(request: Request) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n")
    drips(request)


def drips_headers(request: Request) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nx-long: ")
    drips(request)


def drips(request: Request) -> None:
    while not request.server.released.wait(0.01):
        request.wfile.write(b"a")


@pytest.fixture
def serve():
    """Starts an Endpoint on a free port of this machine; it stops when the test ends."""
    endpoints = []

    def start(*plays: Callable[[Request], None]) -> Endpoint:
        endpoint = Endpoint(*plays)
        threading.Thread(target=endpoint.serve_forever, args=(0.01,), daemon=True).start()
        endpoints.append(endpoint)
        return endpoint

    yield start
    for endpoint in endpoints:
        endpoint.released.set()
        endpoint.shutdown()
        endpoint.server_close()


def edits(endpoint: Endpoint, **changes: object) -> ExpertEdits:
    return ExpertEdits(**{"base_url": endpoint.url, **SHORT, **changes})


def counted(calls: int, cache_hits: int = 0, retries: int = 0, failures: int = 0) -> dict[str, int]:
    return {"calls": calls, "cache_hits": cache_hits, "retries": retries, "failures": failures}


# --- what is asked, and what is made of it


def test_the_expert_sees_all_answers_and_each_agent_its_own_with_its_edits(serve):
    endpoint = serve(edits_for_agent)
    transition = edits(endpoint)
    assert transition.counts == counted(0)
    assert transition("task", ["a", "b"]) == ["task|a|e0", "task|b|e1"]
    assert sorted(endpoint.questions) == ["task|0=a\n\n1=b|0", "task|0=a\n\n1=b|1"]
    assert transition.counts == counted(2)


def test_model_and_sampling_are_sent_and_null_leaves_them_out(serve):
    endpoint = serve(says("e"))
    edits(endpoint, temperature=0.5, max_tokens=7)("task", ["a"])
    edits(endpoint, temperature=None, max_tokens=None)("task", ["a"])
    messages = [{"role": "user", "content": "task|0=a|0"}]
    assert endpoint.sent[0] == {"model": "m", "messages": messages, "temperature": 0.5, "max_tokens": 7}
    assert endpoint.sent[1] == {"model": "m", "messages": messages}


def test_braces_in_task_answers_and_edits_are_left_as_they_are(serve):
    endpoint = serve(says("{prompt}{answer}"))
    assert edits(endpoint)("{answer}{edits}", ["{prompt}{agent}"]) == [
        "{answer}{edits}|{prompt}{agent}|{prompt}{answer}"
    ]
    assert endpoint.questions == ["{answer}{edits}|0={prompt}{agent}|0"]


def test_any_text_is_sent_and_lone_surrogates_as_replacement_characters(serve):
    # U+D83D U+DE00 together are U+1F600; U+D800 alone is nothing. json.dumps writes it as an escape.
    endpoint = serve(says("x\ud800\x00é"))
    assert edits(endpoint)("a\ud800\ud83d\ude00 é\x00", ["😀"]) == ["a\ud800\ud83d\ude00 é\x00|😀|x\ufffd\x00é"]
    assert endpoint.questions == ["a\ufffd\U0001f600 é\x00|0=😀|0"]


def test_two_turns_of_a_team_train_with_the_experts_edits(serve):
    endpoint = serve(edits_for_agent)
    transition = edits(endpoint)
    settings = {"num_agents": 2, "num_generations": 2, "num_turns": 2, "num_train_epochs": 1, "eval_interval": 0}
    trainer, recorder = trainer_of(
        [script("a", "b", "c", "d", "e", "f"), script("g", "h", "i", "j", "a", "b")],
        lambda *completions_N: [float(len(completions_N[0][0]))],
        MAGRPOConfig(**settings, early_termination_threshold=None),
        external_transition=transition,
    )
    trainer.train()
    root = recorder.trees[0][1]
    # Two joint actions of the first turn, aligned: (a, g) and (b, h); the task is "p".
    assert [[prompt.text for prompt in child.prompts_N] for child in root.children_J] == [
        ["p|a|e0", "p|g|e1"],
        ["p|b|e0", "p|h|e1"],
    ]
    assert sorted(endpoint.questions) == ["p|0=a\n\n1=g|0", "p|0=a\n\n1=g|1", "p|0=b\n\n1=h|0", "p|0=b\n\n1=h|1"]
    assert transition.counts == counted(4)


def test_it_works_where_an_event_loop_runs_already(serve):
    transition = edits(serve(says("e")))

    async def notebook() -> list[str]:
        return transition("task", ["a"])

    assert asyncio.run(notebook()) == ["task|a|e"]


# --- trying again, and giving up


@pytest.mark.parametrize("code", [408, 409, 429, 500, 502, 503])
def test_a_status_that_may_pass_is_tried_again_and_counted(code, serve):
    endpoint = serve(status(code), status(code), says("e"))
    transition = edits(endpoint, max_retries=2)
    assert transition("task", ["a"]) == ["task|a|e"]
    assert transition.counts == counted(1, retries=2)
    assert len(endpoint.sent) == 3


def test_a_lost_connection_is_tried_again(serve):
    transition = edits(serve(hangs_up, says("e")), max_retries=1)
    assert transition("task", ["a"]) == ["task|a|e"]
    assert transition.counts == counted(1, retries=1)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422, 307])
def test_a_status_that_does_not_pass_is_an_error_at_once(code, serve):
    endpoint = serve(status(code, location="/v1/elsewhere"))
    transition = edits(endpoint, max_retries=3)
    with pytest.raises(TransitionError, match=rf"^expert m at {endpoint.url}: status {code}: .*no"):
        transition("task", ["a"])
    assert len(endpoint.sent) == 1
    assert transition.counts == counted(1, failures=1)


def test_a_status_without_a_body_is_named_too(serve):
    with pytest.raises(TransitionError, match=r": status 404: without a word$"):
        edits(serve(status(404, b"")))("task", ["a"])


def test_an_endpoint_that_stays_broken_is_an_error_with_status_and_task(serve):
    endpoint = serve(status(503, b"<html>\nbusy " + b"x" * 1000))
    transition = edits(endpoint, max_retries=2)
    caller = TransitionCaller(transition, num_agents=1)
    with pytest.raises(TransitionError) as caught:
        caller(Task("7", {"prompt": "task"}), [Turn(("p",), ("a",))])
    said = str(caught.value)
    assert said.startswith("external_transition marl_runner.transitions.expert_edits.ExpertEdits raised Transition")
    assert f"expert m at {endpoint.url}: status 503: <html> busy xxx" in said
    assert said.endswith("(task 7, after turn 1)")
    assert len(said) < 600
    assert transition.counts == counted(1, retries=2, failures=1)


@pytest.mark.parametrize(
    ("play", "sentence"),
    [
        (says(""), r"the answer holds no text: .*\"content\": \"\""),
        (says(" \n", finish_reason="length"), r"the answer holds no text: .*\"finish_reason\": \"length\""),
        (says(None), r"the answer holds no text"),
        (says([{"type": "text", "text": "e"}]), r"the answer holds no text"),
        (
            lambda request: request.answer(b'{"choices": []}'),
            r"the answer is no chat completion: \{\"choices\": \[\]\}",
        ),
        (lambda request: request.answer(b"[1]"), r"the answer is no chat completion: \[1\]"),
        (lambda request: request.answer(b'{"choices": [{"mes'), r"the answer is not JSON: '\{\"choices\": \[\{\"mes'"),
        (lambda request: request.answer(b"\xff\xfe"), r"the answer is not JSON"),
        (lambda request: request.answer(b"[" * 100_000), r"the answer is not JSON: '\[\[\["),
        (lambda request: request.answer(b""), r"the answer is not JSON: ''"),
    ],
)
def test_an_answer_without_text_is_a_failure(play, sentence, serve):
    transition = edits(serve(play))
    with pytest.raises(TransitionError, match=sentence):
        transition("task", ["a"])
    assert transition.counts == counted(1, failures=1)


def test_an_endpoint_that_is_not_there_is_an_error():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, and nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        with pytest.raises(TransitionError, match=rf"^expert m at {url}: no connection: ConnectError: "):
            ExpertEdits(base_url=url, **SHORT)("task", ["a"])


def test_an_agent_without_edits_revises_and_the_log_says_it_once(serve, caplog):
    transition = edits(
        serve(lambda r: status(400)(r) if r.question.endswith("|1") else says("e")(r)), on_failure="revise"
    )
    with caplog.at_level(logging.WARNING):
        assert transition("task", ["a", "b"]) == ["task|a|e", "task|b"]
        assert transition("other", ["a", "b"]) == ["other|a|e", "other|b"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "status 400" in caplog.text
    assert "on_failure=revise" in caplog.text
    assert transition.counts == counted(4, failures=2)


def test_the_fallback_of_the_yaml_file_is_the_prompt_of_revise():
    of = {
        name: yaml.safe_load((ROOT / f"conf/transition/{name}.yaml").read_text()) for name in ("expert_edits", "revise")
    }
    assert of["expert_edits"]["fallback_template"] == of["revise"]["template"]


# --- bounded time


def test_silence_is_tried_again_and_then_given_up(serve):
    endpoint = serve(never)
    transition = edits(endpoint, timeout_s=0.2, max_retries=1)
    with pytest.raises(TransitionError, match=r": silent for 0.2 s, tried 2 times$"):
        transition("task", ["a"])
    assert transition.counts == counted(1, retries=1, failures=1)


@pytest.mark.parametrize("drip", [drips_a_body, drips_headers])
def test_an_endpoint_that_answers_a_byte_at_a_time_for_ever_is_given_up(drip, serve):
    transition = edits(serve(drip), timeout_s=0.5)
    with pytest.raises(TransitionError, match=r": no whole answer in 0.5 s$"):
        transition("task", ["a"])
    assert transition.counts == counted(1, failures=1)


def test_the_most_a_question_takes_counts_every_try_and_every_wait():
    endpoint = expert.Endpoint("http://h/v1", None, "m", None, None, timeout_s=60.0, max_retries=4)
    # five tries of 60 s, four waits of 8 s
    assert endpoint.total_s == 332.0


def test_a_wait_that_the_endpoint_asks_for_ends_with_the_question(serve, monkeypatch):
    monkeypatch.setattr(expert, "MOST_WAIT_S", 0.0)
    transition = edits(serve(status(429, **{"retry-after-ms": "100000"})), timeout_s=0.2, max_retries=1)
    # 0.2 s + 1 * (0.2 s + 0 s)
    with pytest.raises(TransitionError, match=r": no whole answer in 0.4 s$"):
        transition("task", ["a"])
    assert transition.counts == counted(1, failures=1)


def test_a_signal_ends_the_wait_at_once(serve, monkeypatch):
    def handler(number: int, frame: object) -> None:
        raise Stopped(signal.SIGTERM)

    def asks_to_stop(request: Request) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        never(request)

    transition = edits(serve(asks_to_stop, says("e")), timeout_s=600.0)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Stopped):
            transition("task", ["a"])
    finally:
        signal.signal(signal.SIGUSR1, before)
    # The lock is free again.
    assert transition("task", ["b"]) == ["task|b|e"]


# --- the cache


def test_what_was_answered_is_not_asked_again(serve):
    endpoint = serve(edits_for_agent)
    transition = edits(endpoint)
    assert transition("task", ["a", "b"]) == transition("task", ["a", "b"])
    transition("task", ["a", "c"])
    assert len(endpoint.sent) == 4
    assert transition.counts == counted(6, cache_hits=2)


def test_a_question_asked_twice_at_once_is_sent_once(serve):
    endpoint = serve(says("e"))
    asked = edits(endpoint)._expert
    assert asked.ask(["q", "r", "q"]) == ["e", "e", "e"]
    assert sorted(endpoint.questions) == ["q", "r"]
    assert asked.counts == counted(3, cache_hits=1)


def test_threads_that_ask_the_same_send_it_once(serve):
    endpoint = serve(says("e"))
    transition = edits(endpoint)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: transition("task", ["a"]), range(16))) == [["task|a|e"]] * 16
    assert len(endpoint.sent) == 1
    assert transition.counts == counted(16, cache_hits=15)


def test_a_failure_is_asked_again(serve):
    endpoint = serve(status(400), says("e"))
    transition = edits(endpoint, on_failure="revise")
    assert transition("task", ["a"]) == ["task|a"]
    assert transition("task", ["a"]) == ["task|a|e"]
    assert transition.counts == counted(2, failures=1)


def test_the_answer_that_was_unused_the_longest_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(expert, "MOST_KEPT", 2)
    endpoint = serve(says("e"))
    asked = edits(endpoint)._expert
    for question in ("a", "b", "a", "c", "a", "b"):
        asked.ask([question])
    # kept after each: a | a b | b a | a c (b given up) | c a | a b (c given up)
    assert endpoint.questions == ["a", "b", "c", "b"]


# --- the key, and the way to the endpoint


def test_the_key_is_sent_and_shows_in_no_message(serve, monkeypatch):
    monkeypatch.setenv("EXPERT_KEY", "k-123456")

    def repeats(request: Request) -> None:
        request.answer(json.dumps({"error": {"message": request.headers["authorization"]}}).encode(), 401)

    endpoint = serve(repeats)
    transition = edits(endpoint, api_key_env="EXPERT_KEY")
    caller = TransitionCaller(transition, num_agents=1)
    with pytest.raises(TransitionError) as caught:
        caller(Task("7", {"prompt": "task"}), [Turn(("p",), ("a",))])
    assert endpoint.headers[0]["authorization"] == "Bearer k-123456"
    assert "Bearer ***" in str(caught.value)
    everything = (
        "".join(traceback.format_exception(caught.value)) + repr(transition) + repr(transition._expert.endpoint)
    )
    assert "k-123456" not in everything


def test_no_key_is_sent_that_was_not_named(serve, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k-123456")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "k-123456")
    endpoint = serve(says("e"))
    edits(endpoint)("task", ["a"])
    assert "authorization" not in endpoint.headers[0]
    assert "k-123456" not in str(endpoint.headers)


def test_no_proxy_stands_between_the_run_and_its_own_machine(serve, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert edits(serve(says("e")))("task", ["a"]) == ["task|a|e"]


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://localhost/v1", True),
        ("http://[::1]:8000/v1", True),
        ("https://example.org/v1", False),
        ("http://10.0.0.1/v1", False),
    ],
)
def test_a_proxy_is_passed_by_for_this_machine_only(url, is_local):
    assert expert.Endpoint(url, None, "m", None, None, 1.0, 0).is_local is is_local


@pytest.mark.parametrize("value", ["", "k 1", "k\n", "ké"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(value, monkeypatch):
    monkeypatch.setenv("EXPERT_KEY", value)
    with pytest.raises(
        ConfigError, match=r"^transition.api_key_env: the variable is empty, or has spaces, line ends o"
    ):
        ExpertEdits(base_url="http://h/v1", **{**SHORT, "api_key_env": "EXPERT_KEY"})


def test_a_variable_that_is_not_set_is_refused_without_being_shown(monkeypatch):
    # It may be the key itself, by mistake.
    monkeypatch.delenv("k123456", raising=False)
    with pytest.raises(
        ConfigError, match=r"^transition.api_key_env names no environment variable that is set"
    ) as caught:
        ExpertEdits(base_url="http://h/v1", **{**SHORT, "api_key_env": "k123456"})
    assert "k123456" not in str(caught.value)


# --- the configuration


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("base_url", "127.0.0.1:8000", r"transition.base_url must be an address like http://127.0.0.1:8000/v1"),
        ("base_url", "http://", r"transition.base_url must be an address"),
        ("base_url", "ftp://h/v1", r"transition.base_url must be an address"),
        ("base_url", "http://h:99999/v1", r"transition.base_url must be an address"),
        ("base_url", "http://[::1/v1", r"transition.base_url must be an address"),
        ("base_url", "http://h/v1\n", r"transition.base_url must be an address"),
        ("base_url", "http://me:k-123456@h/v1", r"transition.base_url must have no password, \? or #"),
        ("base_url", "http://h/v1?key=k-123456", r"transition.base_url must have no password, \? or #"),
        ("model", " ", r"transition.model is empty"),
        ("temperature", -0.1, r"transition.temperature must be >= 0 or null, got -0.1"),
        ("temperature", float("nan"), r"transition.temperature must be >= 0 or null, got nan"),
        ("max_tokens", 0, r"transition.max_tokens must be >= 1 or null, got 0"),
        ("timeout_s", 0.0, r"transition.timeout_s must be > 0 and finite, got 0.0"),
        ("timeout_s", float("inf"), r"transition.timeout_s must be > 0 and finite, got inf"),
        ("max_retries", -1, r"transition.max_retries must be >= 0, got -1"),
        ("on_failure", "ignore", r"transition.on_failure must be error or revise, got 'ignore'"),
        ("expert_template", "{prompt}", r"transition.expert_template has no {answers} and no {agent}"),
        ("answer_template", "{answer}", r"transition.answer_template has no {agent}"),
        ("agent_template", "{prompt}{answer}", r"transition.agent_template has no {edits}"),
        ("fallback_template", "{answer}", r"transition.fallback_template has no {prompt}"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_key(key, value, sentence):
    with pytest.raises(ConfigError, match=rf"^{sentence}") as caught:
        ExpertEdits(**{"base_url": "http://h/v1", **SHORT, key: value})
    assert "k-123456" not in str(caught.value)


def test_the_command_line_composes_it(serve, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    endpoint = serve(says("shorter"))
    given = [f"transition.base_url={endpoint.url}", "transition.model=m", "trainer.num_turns=2"]
    cfg = composed("transition=expert_edits", *given)
    check(cfg)
    first, second = option("transition", cfg)("Tell a story.", ["Once.", "Twice."])
    assert "Tell a story.\n\nYour previous answer:\nOnce.\n" in first
    assert "edits to it:\nshorter\n" in second
    for question in endpoint.questions:
        assert "Tell a story." in question
        assert "Agent 0:\nOnce.\n\nAgent 1:\nTwice.\n" in question
    assert {"agent 0" in question for question in endpoint.questions} == {True, False}


def test_the_command_refuses_what_is_missing_or_misspelt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = ("transition=expert_edits", "trainer.num_turns=2", "transition.base_url=http://127.0.0.1:8000/v1")
    assert refused(*chosen) == "transition.model has no value: give transition.model=…"
    assert refused(*chosen, "transition.model=m", "transition.timeout_s=soon") == (
        "transition.timeout_s must be a number, got soon"
    )
    named = refused(*chosen, "transition.model=m", "transition.api_key_env=NOT_SET_ANYWHERE")
    assert named.startswith("transition.api_key_env names no environment variable that is set")


def test_without_the_package_the_fix_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ConfigError, match=r"needs the package openai: pip install marl-runner\[expert\]$"):
        ExpertEdits(base_url="http://h/v1", **SHORT)


def test_plain_is_revise_by_another_name():
    plain, revise = (composed(f"transition={name}", "trainer.num_turns=2") for name in ("plain", "revise"))
    check(plain)
    assert plain.transition == revise.transition
    assert isinstance(option("transition", copy.deepcopy(plain)), Revise)
