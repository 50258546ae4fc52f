"""The sandbox: what a program is scored, and that no program can forge it, hang it or do harm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from marl_runner.errors import ConfigError
from marl_runner.sandbox import Job, Limits, Sandbox, isolation, pool
from marl_runner.sandbox.isolation import Isolation, find_isolation
from marl_runner.sandbox.plain import NotPlainError, dumped, loaded
from marl_runner.sandbox.suite import parse_suite

LIMITS = Limits(wall_s=6.0, test_s=1.0, cpu_s=4.0, memory_mib=256, disk_mib=4, output_kib=64)
FOUND = find_isolation(LIMITS, required=False)
isolated = pytest.mark.skipif(not FOUND.is_complete, reason=str(FOUND))


@pytest.fixture(scope="module")
def sandbox():
    made = Sandbox(LIMITS, "auto", num_workers=1)
    made.start()
    yield made
    made.close()


def outcome(sandbox, program, test, entry_point="f", preamble=""):
    return sandbox(Job(textwrap.dedent(program), entry_point, textwrap.dedent(test), textwrap.dedent(preamble)))


def only(sandbox, program, test):
    """The one test of a job."""
    (found,) = outcome(sandbox, program, test).tests
    return found


def still_works(sandbox):
    return outcome(sandbox, "def f(x): return x + 1", "assert f(1) == 2\nassert f(2) == 4").passed == 1


# What is scored


def test_an_outcome_has_one_entry_per_test_with_source_kind_and_message(sandbox):
    found = outcome(
        sandbox,
        """
        def f(x):
            if x == 3:
                raise ValueError("three")
            return x + 1
        """,
        """
        def check(candidate):
            assert candidate(1) == 2
            assert candidate(2) == 5, "two"
            assert candidate(3) == 4
        """,
    )
    assert [test.passed for test in found.tests] == [True, False, False]
    assert [test.kind for test in found.tests] == ["", "assertion", "exception"]
    assert found.tests[1].source == "assert candidate(2) == 5, 'two'"
    assert found.tests[1].message == "f(2) returned 3: two"
    assert found.tests[2].message == "f(3): ValueError: three"
    assert (found.passed, found.failed, found.kind) == (1, 2, "assertion")
    assert found.elapsed_s > 0


def test_a_loop_with_an_assertion_is_one_test_and_what_prepares_it_none(sandbox):
    found = outcome(sandbox, "def f(x): return x", "cases = [1, 2]\nfor case in cases:\n    assert f(case) == case")
    assert (found.passed, found.failed) == (1, 0)


def test_an_assertion_of_a_constant_is_no_test():
    # as in HumanEval: `assert True, "This prints if this assert fails 1"`
    suite = parse_suite('def check(candidate):\n    assert True, "easy"\n    assert candidate(1)\n    x = 3\ncheck(f)')
    assert [(each.source, each.is_test) for each in suite.statements] == [
        ("assert candidate(1)", True),
        ("x = 3", False),
    ]
    assert suite.num_tests == 1
    assert suite.names == ("candidate",)


def test_tests_may_use_their_own_names_and_the_preamble_of_the_task(sandbox):
    found = outcome(
        sandbox,
        "def f(x): return x * 2",
        "import math\ndef half(x): return double(x) / 4\nassert math.isclose(half(f(3)), 3)",
        preamble="def double(x): return 2 * x",
    )
    assert (found.passed, found.failed) == (1, 0)


def test_names_of_the_program_reach_the_tests_only_by_calls(sandbox):
    assert only(sandbox, "secret = 1\ndef f(): return 1", "assert secret == 1").message == (
        "NameError: name 'secret' is not defined"
    )


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("(1, [2.5, None], 'é\\ud800')", "(1, [2.5, None], 'é\\ud800')"),
        ("{1: {2, 3}, (4, 5): frozenset({6})}", "{1: {2, 3}, (4, 5): frozenset({6})}"),
        ("2 ** 3000", "2 ** 3000"),
        ("-2 ** 70", "-2 ** 70"),
        ("float('inf')", "float('inf')"),
        ("1 + 2j", "1 + 2j"),
        ("b'\\x00\\xff'", "b'\\x00\\xff'"),
        ("range(1, 9, 2)", "range(1, 9, 2)"),
        ("True", "True"),
        ("__import__('collections').Counter('aab')", "{'a': 2, 'b': 1}"),
    ],
)
def test_plain_values_cross_the_border_as_they_are(sandbox, expression, expected):
    program = f"def f(x): return x if x is not None else {expression}"
    # the other way too: the expected value is sent as an argument and comes back
    equal = f"assert f(None) == {expected}\nassert f({expected}) == {expected}"
    both = f"{equal}\nassert type(f({expected})) is type({expected})"
    assert outcome(sandbox, program, both).passed == 3


def test_an_iterator_is_consumed_over_there_and_equal_to_no_list_here(sandbox):
    found = outcome(
        sandbox,
        "def f():\n    n = 0\n    while n < 3:\n        yield n\n        n += 1",
        "assert list(f()) == [0, 1, 2]\nassert f() == [0, 1, 2]",
    )
    assert [test.passed for test in found.tests] == [True, False]


def test_what_is_written_is_plain_or_refused():
    assert loaded(dumped([(1,), {2: {3}}])) == [(1,), {2: {3}}]
    with pytest.raises(NotPlainError, match="of type object"):
        dumped(object())
    with pytest.raises(RecursionError):
        dumped(endless_list())
    for broken in (
        b"{",
        b'{"set": [[]]}',
        b'{"no": 1}',
        b'{"int": 1}',
        b'{"set": 1, "tuple": 2}',
        b'{"complex": [1, 2, 3]}',
    ):
        with pytest.raises(ValueError):  # noqa: PT011  whatever it says, nobody reads it
            loaded(broken)


def endless_list():
    made = []
    made.append(made)
    return made


def test_an_exception_of_pythons_own_arrives_as_itself(sandbox):
    test = """
    try:
        f()
        raised = False
    except ValueError as error:
        raised = str(error) == "no"
    assert raised
    """
    assert only(sandbox, "def f(): raise ValueError('no')", test).passed
    message = only(sandbox, "class Mine(Exception): pass\ndef f(): raise Mine('no')", "assert f()").message
    assert message == "f(): Mine: no"


def test_a_program_that_is_lost_in_one_test_is_there_for_the_next(sandbox):
    program = "import os\ndef f(x):\n    if x == 2:\n        os._exit(0)\n    return x"
    found = outcome(sandbox, program, "assert f(1) == 1\nassert f(2) == 2\nassert f(3) == 3")
    assert [(test.passed, test.kind) for test in found.tests] == [(True, ""), (False, "exit"), (True, "")]


@pytest.mark.parametrize("source", ["def f(:", "def f(): return 1\x00", "x = 1\n  def f(): pass", "f = '\ud800'"])
def test_a_source_that_is_no_python_fails_every_test(sandbox, source):
    found = outcome(sandbox, source, "assert f() == 1\nassert f() == 2")
    assert [test.passed for test in found.tests] == [False, False]
    assert found.kind in ("syntax", "exception")


def test_draws_and_hashes_are_the_same_every_time(sandbox):
    test = "import random\nassert f(random.random()) == 0"
    program = "import random\ndef f(x):\n    return (x, hash('a'))"
    first = only(sandbox, program, test).message
    assert only(sandbox, program + "\n", test).message == first


def test_tests_that_are_no_python_are_an_error_and_not_a_score(sandbox):
    with pytest.raises(SyntaxError):
        outcome(sandbox, "def f(): return 1", "assert f( == 1")
    with pytest.raises(ValueError, match=r"the tests of f cannot be run: ZeroDivisionError: division by zero"):
        outcome(sandbox, "def f(): return 1", "assert f() == 1", preamble="1 / 0")
    assert still_works(sandbox)


def test_a_job_that_was_done_is_not_done_again(monkeypatch):
    made = Sandbox(LIMITS)
    jobs = []
    monkeypatch.setattr(made, "_done", lambda job: jobs.append(job) or job.program)
    made.isolation = FOUND
    assert [made(Job("a", "f", "")), made(Job("b", "f", "")), made(Job("a", "f", ""))] == ["a", "b", "a"]
    assert [job.program for job in jobs] == ["a", "b"]


def test_any_number_of_threads_may_call_it():
    made = Sandbox(LIMITS, num_workers=2)
    try:
        with ThreadPoolExecutor(4) as threads:
            jobs = [Job(f"def f(x): return x + {n}", "f", "assert f(1) == 4") for n in range(8)]
            found = list(threads.map(made, jobs))
        assert [each.passed for each in found] == [0, 0, 0, 1, 0, 0, 0, 0]
    finally:
        made.close()


# Attacks: time


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "__import__('time').sleep(60)",
        "__import__('signal').pause()",
        "sum(10 ** 10 ** 7 for _ in iter(int, 1))",
        "[print('x' * 1000) for _ in iter(int, 1)]",
        "__import__('threading').Event().wait()",
    ],
)
def test_what_takes_too_long_is_a_timeout(sandbox, body):
    started = time.monotonic()
    found = only(sandbox, f"def f():\n    {body}", "assert f() == 1")
    assert (found.passed, found.kind) == (False, "timeout")
    assert time.monotonic() - started < LIMITS.wall_s
    assert still_works(sandbox)


def test_a_source_that_never_ends_is_not_started_again(sandbox):
    started = time.monotonic()
    found = outcome(sandbox, "while True: pass\ndef f(): return 1", "assert f() == 1\n" * 20)
    assert [test.kind for test in found.tests] == ["timeout"] * 20
    assert time.monotonic() - started < 2 * LIMITS.test_s + 1


def test_all_tests_together_have_a_limit_too(sandbox):
    found = outcome(sandbox, "def f():\n    while True: pass", "assert f() == 1\n" * 30)
    assert [test.kind for test in found.tests] == ["timeout"] * 30
    assert found.elapsed_s < LIMITS.wall_s + 2
    assert found.tests[-1].message == "no time is left for this test"


def test_a_test_that_loops_over_what_a_program_returned_is_interrupted(sandbox):
    found = only(sandbox, "def f(): return 10 ** 18", "assert all(x >= 0 for x in range(f()))")
    assert (found.passed, found.kind, found.message) == (
        False,
        "timeout",
        "f() returned 1000000000000000000: the test itself took too long",
    )
    assert still_works(sandbox)


# Attacks: memory, disk, output


@pytest.mark.parametrize(
    "body",
    [
        "bytearray(10 ** 11)",
        "'a' * 10 ** 10",
        "print('a' * 10 ** 10)",
        "[bytearray(10 ** 6) for _ in iter(int, 1)]",
        "list(range(10 ** 9))",
    ],
)
def test_a_memory_bomb_is_a_failure(sandbox, body):
    found = only(sandbox, f"def f():\n    {body}\n    return 1", "assert f() == 1")
    assert (found.passed, found.kind) == (False, "memory")
    assert still_works(sandbox)


def test_an_endless_append_is_a_failure(sandbox):
    found = only(sandbox, "def f():\n    a = []\n    while True: a.append(a[:])", "assert f() == 1")
    assert found.kind in ("memory", "timeout")
    assert still_works(sandbox)


@isolated
@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("open('a', 'w').truncate(10 ** 13)", ["exception"]),
        ("open('a', 'wb').write(bytes(10 ** 8))", ["exception"]),
        ("[open(str(n), 'wb').write(bytes(10 ** 6)) for n in range(10 ** 6)]", ["disk"]),
        ("[open(str(n), 'w').close() for n in range(10 ** 8)]", ["disk"]),
        ("__import__('os').mkdir('a')", ["exception"]),
        ("__import__('os').symlink('/', 'a')", ["exception"]),
        ("__import__('os').link('a', 'b')", ["exception"]),
    ],
)
def test_a_disk_bomb_is_a_failure_and_leaves_nothing(sandbox, body, kinds):
    found = only(sandbox, f"def f():\n    {body}\n    return 1", "assert f() == 1")
    assert found.passed is False
    assert found.kind in kinds, found
    assert still_works(sandbox)


def test_a_program_may_write_in_its_own_folder_which_is_gone_afterwards(sandbox):
    program = "import os\ndef f():\n    open('a', 'w').write('x')\n    return [open('a').read(), os.getcwd()]"
    found = outcome(sandbox, program, "assert f()[0] == 'x'\nassert f()[1] == 0")
    assert [test.passed for test in found.tests] == [True, False]
    folder = found.tests[1].message.split("'")[3]
    assert "marl-sandbox-" in folder
    assert not Path(folder).exists()


def test_deleting_the_working_folder_hurts_nobody(sandbox):
    program = "import shutil\ndef f():\n    shutil.rmtree('.', ignore_errors=True)\n    return 1"
    assert outcome(sandbox, program, "assert f() == 1\nassert f() == 1").passed == 2
    assert still_works(sandbox)


def test_an_answer_that_is_too_long_is_refused_unread(sandbox):
    found = only(sandbox, "def f(): return 'a' * 10 ** 6", "assert len(f()) == 10 ** 6")
    assert (found.passed, found.kind) == (False, "output")


def test_one_megabyte_of_source_is_run(sandbox):
    assert only(sandbox, f"x = '{'a' * 10**6}'\ndef f(): return len(x)", "assert f() == 10 ** 6").passed
    # its syntax tree takes more than the limit of 256 MiB
    assert only(sandbox, "def f(): return 1\n" + "x = 1\n" * 170_000, "assert f() == 1").kind == "memory"
    assert only(sandbox, "def f(): return " + "(" * 10**6, "assert f() == 1").kind in ("syntax", "memory")
    assert still_works(sandbox)


# Attacks: processes


@isolated
@pytest.mark.parametrize(
    "body",
    [
        "while True: os.fork()",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "__import__('subprocess').run(['true'])",
        "os.execv('/bin/true', ['true'])",
        "os.system('true') == 0 or 1 / 0",
        "__import__('multiprocessing').Process(target=print).start()",
    ],
)
def test_no_process_can_be_started(sandbox, body):
    found = only(sandbox, f"import os\ndef f():\n    {body}\n    return 1", "assert f() == 1")
    assert (found.passed, found.kind) == (False, "exception")
    assert still_works(sandbox)


def test_threads_are_allowed_and_end_with_the_program(sandbox):
    program = """
    import threading
    def f():
        found = []
        thread = threading.Thread(target=found.append, args=(1,))
        thread.start()
        thread.join()
        threading.Thread(target=threading.Event().wait).start()
        return found
    """
    assert only(sandbox, program, "assert f() == [1]").passed == ("seccomp" in FOUND.layers or os.getuid() == 0)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("exit()", "exception"),
        ("raise SystemExit", "exception"),
        ("__import__('os')._exit(0)", "exit"),
        ("__import__('os').abort()", "exit"),
        ("__import__('os').kill(__import__('os').getpid(), 9)", "timeout"),
        ("__import__('os').closerange(0, 64)", "exit"),
        ("raise KeyboardInterrupt", "exception"),
    ],
)
def test_a_program_that_ends_itself_has_failed(sandbox, body, kind):
    found = only(sandbox, f"def f():\n    {body}", "assert f() is None")
    assert found.passed is False
    assert found.kind == kind
    assert still_works(sandbox)


def test_a_source_that_ends_the_process_fails_every_test(sandbox):
    found = outcome(sandbox, "import os\nos._exit(0)\ndef f(): return 1", "assert f() == 1\nassert f() == 1")
    assert [test.kind for test in found.tests] == ["exit", "exit"]


@pytest.fixture
def open_sandbox(monkeypatch):
    """A sandbox as on a machine whose kernel isolates nothing."""
    nothing = Isolation((), (), ("network", "files outside", "other processes", "signals to others"))
    monkeypatch.setattr(pool, "find_isolation", lambda limits, required: nothing)
    made = Sandbox(LIMITS)
    yield made
    made.close()


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(os.getuid() != 0, reason="the kernel lets other users than root start no process at all")
def test_without_isolation_a_detached_daemon_is_dead_afterwards(open_sandbox):
    program = """
    import os, time
    def f():
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(writing, str(os.getpid()).encode())
                time.sleep(600)
            os._exit(0)
        return int(os.read(reading, 20))
    """
    found = only(open_sandbox, program, "assert f() == 0")
    daemon = int(found.message.rpartition(" ")[2])
    assert daemon > 1
    assert not is_alive(daemon)


@pytest.mark.skipif(os.getuid() != 0, reason="the kernel lets other users than root start no process at all")
def test_without_isolation_what_starts_processes_is_killed_with_all_of_them(open_sandbox):
    program = """
    import os, time
    def f():
        for _ in range(20):
            if os.fork() == 0:
                if os.fork() == 0:
                    os.setsid()
                time.sleep(600)
        time.sleep(600)
    """
    found = only(open_sandbox, program, "assert f() == 0")
    assert (found.kind, found.message) == ("exit", "f(): started a process")
    assert still_works(open_sandbox)
    open_sandbox.close()
    sleepers = [path for path in Path("/proc").glob("[0-9]*/cmdline") if "sandbox.inside" in text_of(path)]
    assert sleepers == []


def text_of(path):
    try:
        return path.read_text()
    except OSError:
        return ""


# Attacks: the surroundings


@isolated
@pytest.mark.parametrize(
    "body",
    [
        "os.kill(os.getppid(), 9)",
        "os.kill(0, 15)",
        "os.kill(-1, 9)",
        "os.killpg(os.getpgid(0), 15)",
        "os.pidfd_open(os.getppid())",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "open(f'/proc/{os.getppid()}/environ').read()",
        "open(f'/proc/{os.getppid()}/mem', 'r+b')",
        "open('/proc/self/environ').read()",
        "os.listdir('/')",
        "os.listdir(os.path.dirname(os.getcwd()))",
        "open('/etc/passwd').read()",
        "open('/etc/hostname', 'a')",
        "open('/tmp/of-a-program', 'w')",
        "open('../of-a-program', 'w')",
        "os.unlink('/etc/hostname')",
        "os.rename('/etc/hostname', 'a')",
        "os.chmod('.', 0o777)",
        "os.truncate('/etc/hostname', 0)",
        "socket.socket()",
        "socket.socket(socket.AF_UNIX)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "socket.socketpair()",
        "socket.create_connection(('127.0.0.1', 22), 0.1)",
        "os.memfd_create('a')",
        "os.mkfifo('a')",
        "os.chroot('.')",
        "os.sched_setaffinity(0, {0})",
        "resource.setrlimit(resource.RLIMIT_AS, (2 ** 40, 2 ** 40))",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "checked(libc.ptrace(16, os.getppid(), 0, 0))",
        "checked(libc.syscall(310, os.getppid(), 0, 0, 0, 0, 0))",  # process_vm_readv
        "checked(libc.syscall(425, 8, 0))",  # io_uring_setup
        "checked(libc.syscall(272, 0x10000000))",  # unshare
        "checked(libc.syscall(101, 0, 0, 0, 0))",  # ptrace by number
        "checked(libc.prctl(1, 0, 0, 0, 0))",  # outlive the worker
    ],
)
def test_nothing_outside_can_be_reached(sandbox, body):
    program = f"""
    import ctypes, os, resource, signal, socket
    libc = ctypes.CDLL(None, use_errno=True)
    def checked(answer):
        if answer == -1:
            raise OSError(ctypes.get_errno(), "refused")
    def f():
        try:
            {body}
        except (OSError, ValueError) as error:
            return "refused"
        return "done"
    """
    assert only(sandbox, program, "assert f() == 'refused'").passed, body
    assert still_works(sandbox)
    assert not Path("/tmp/of-a-program").exists()


def test_no_secret_of_the_trainer_is_in_the_environment(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret-1")
    monkeypatch.setenv("HF_TOKEN", "secret-2")
    made = Sandbox(LIMITS)
    program = "import os\ndef f(): return dict(os.environ)"
    test = "assert sorted(f()) == ['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED', 'TMPDIR']\nassert 'secret' not in str(f())"
    try:
        assert outcome(made, program, test).passed == 2
    finally:
        made.close()


def test_standard_input_is_empty(sandbox):
    assert only(sandbox, "import sys\ndef f(): return sys.stdin.read()", "assert f() == ''").passed
    assert "EOFError" in only(sandbox, "def f(): return input()", "assert f() == ''").message


# Attacks: the score


FORGERIES = {
    "prints passed": "print('passed'); print('{\"tests\": []}')",
    "writes answers and outcomes into every descriptor": """
        import json, os, struct
        outcome = {"tests": [{"source": "", "passed": True}] * 2, "elapsed_s": 0}
        for message in (b'{"returned": 1}', json.dumps(outcome).encode()):
            for descriptor in range(64):
                try:
                    os.write(descriptor, struct.pack("!I", len(message)) + message)
                except OSError:
                    pass
    """,
    "patches the checker": """
        import marl_runner.sandbox.inside as inside, marl_runner.sandbox.plain as plain, sys
        plain.encoded = plain.dumped = lambda value: b"2"
        for name in ("checker", "worker", "pool", "suite"):
            try:
                module = __import__("marl_runner.sandbox." + name, fromlist=["x"])
                for each in list(vars(module)):
                    setattr(module, each, lambda *a, **k: True)
            except Exception:
                pass
    """,
    "patches builtins": """
        import builtins
        builtins.AssertionError = type("AssertionError", (), {})
        builtins.isinstance = lambda *a: True
        builtins.len = lambda a: 0
    """,
    "raises what ends a test early": "raise SystemExit(0)",
    "looks for the tests": """
        import gc, sys
        def found(value):
            return isinstance(value, str) and "the expected answer" in value and value != MINE
        for value in gc.get_objects():
            if isinstance(value, dict) and any(found(each) for each in list(value.values())):
                raise SystemExit
        frame = sys._getframe()
        while frame:
            for each in [*frame.f_locals.values(), *frame.f_globals.values()]:
                if found(each):
                    raise SystemExit
            frame = frame.f_back
    """,
}


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("inside_call", [False, True])
def test_a_score_cannot_be_forged(sandbox, forgery, inside_call):
    body = textwrap.dedent(FORGERIES[forgery]).strip()
    if inside_call:
        program = "MINE = ''\ndef f(x):\n" + textwrap.indent(body, "    ") + "\n    return 0"
    else:
        program = f"MINE = ''\n{body}\ndef f(x): return 0"
    found = outcome(sandbox, program, "assert f(1) == 'the expected answer'\nassert f(2) == 'the expected answer'")
    assert (found.passed, found.failed) == (0, 2), forgery
    assert still_works(sandbox)


@pytest.mark.parametrize(
    "definition",
    [
        "class Always:\n    def __eq__(self, other): return True",
        "class Always(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__",
        "class Always(str):\n    def __eq__(self, other): return True\n    def __len__(self): return 42",
        "class Always(list):\n    def __eq__(self, other): return True\n    def __iter__(self): return iter([42])",
        "class Always(dict):\n    def __eq__(self, other): return True\n    def items(self): return [(1, 42)]",
        "class Always:\n    __class__ = int\n    def __index__(self): return 42",
    ],
)
def test_an_object_that_is_equal_to_everything_is_equal_to_nothing_it_is_not(sandbox, definition):
    found = outcome(
        sandbox,
        f"{definition}\ndef f(): return Always()",
        "assert f() == 42\nassert f() == [42]\nassert f() == {1: 42}",
    )
    assert found.passed == 0


def test_an_argument_that_a_program_changes_is_its_own_copy(sandbox):
    test = "given = [1, 2]\nf(given)\nassert given == [1, 2]"
    assert only(sandbox, "def f(x): x.clear()", test).passed


@pytest.mark.parametrize(
    "program",
    [
        "def f(n=0): return f(n + 1)",
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(n=0): return f(n + 1)",
        "def f():\n    a = []\n    for _ in range(10 ** 5): a = [a]\n    return a",
        "def f():\n    a = []\n    a.append(a)\n    return a",
        "import os\ndef f():\n    m = b'{\"returned\": ' + b'[' * 50000\n"
        "    for d in range(64):\n        try: os.write(d, len(m).to_bytes(4, 'big') + m)\n"
        "        except OSError: pass",
    ],
)
def test_deep_recursion_is_a_failure(sandbox, program):
    found = only(sandbox, program, "assert f() == 1")
    assert found.passed is False
    assert found.kind in ("exception", "exit", "output", "memory", "timeout")
    assert still_works(sandbox)


# The sandbox itself


def test_require_refuses_to_run_without_isolation(monkeypatch):
    monkeypatch.setattr(isolation, "COMBINATIONS", (("landlock",), ()))
    made = Sandbox(LIMITS, "require")
    with pytest.raises(ConfigError, match=r"reward.sandbox=require, but on this machine a program can reach network"):
        made.start()
    assert "NOT forbidden: network" in str(find_isolation(LIMITS, required=False))


@isolated
def test_what_is_in_force_is_said_in_one_line(caplog):
    made = Sandbox(LIMITS, "require")
    with caplog.at_level("INFO"):
        made.start()
    made.close()
    assert [record.message for record in caplog.records] == [
        "sandbox: limits on time, memory, files and output; forbidden by landlock and seccomp: network, files outside, "
        "other processes, signals to others"
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("wall_s", 0, "reward.limits.wall_s must be a number > 0, got 0"),
        ("test_s", float("nan"), "reward.limits.test_s must be a number > 0, got nan"),
        ("cpu_s", True, "reward.limits.cpu_s must be a number > 0, got True"),
        ("disk_mib", float("inf"), "reward.limits.disk_mib must be a number > 0"),
        ("memory_mib", 10, "reward.limits.memory_mib must be >= 64, got 10"),
        ("walls", 1, r"unknown key reward.limits.walls; nearest: reward.limits.wall_s \(valid: wall_s"),
    ],
)
def test_limits_out_of_their_range_are_refused(name, value, message):
    values = {"wall_s": 6.0, "test_s": 1.0, "cpu_s": 4.0, "memory_mib": 256.0, "disk_mib": 4.0, "output_kib": 64.0}
    with pytest.raises(ConfigError, match=message):
        Limits.of({**values, name: value})
    with pytest.raises(ConfigError, match=r"reward.limits.test_s has no value"):
        Limits.of({"wall_s": 1.0})


def test_limits_in_which_no_program_starts_are_an_error_at_start():
    with pytest.raises(ConfigError, match="no program can run under the limits"):
        Sandbox(Limits(6.0, 1.0, 4.0, 64, 4, 0.001)).start()


def test_a_worker_that_is_killed_is_replaced(sandbox):
    ((worker,),) = [tuple(sandbox._idle.queue)]
    worker._process.kill()
    found = only(sandbox, "def f(): return 'killed'", "assert f() == 'killed'")
    assert (found.passed, found.kind, found.message) == (False, "exit", "the worker that ran it was lost")
    assert still_works(sandbox)


def test_everything_ends_with_the_trainer_even_when_it_is_killed(tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(
        textwrap.dedent(
            """
            import threading, time
            from marl_runner.sandbox import *
            sandbox = Sandbox(Limits(60.0, 60.0, 60.0, 256, 4, 64), num_workers=2)
            sandbox.start()
            print(*[worker._process.pid for worker in sandbox._idle.queue], flush=True)
            threading.Thread(target=sandbox, args=(Job("def f():\\n    while True: pass", "f", "assert f()"),)).start()
            time.sleep(600)
            """
        )
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as trainer:
        workers = [int(word) for word in trainer.stdout.readline().split()]
        wait_for(lambda: any("sandbox.inside" in text_of(Path(f"/proc/{n}/cmdline")) for n in children(workers)))
        below = [*workers, *children(workers)]
        assert len(below) == 3
        trainer.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(is_alive(process) for process in below))
    wait_for(lambda: not list(tmp_path.glob("marl-sandbox-*")))


def children(processes):
    return [int(n) for each in processes for n in text_of(Path(f"/proc/{each}/task/{each}/children")).split()]


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_it_starts_and_works_after_tokenizer_threads(sandbox):
    # tokenizers' threads make a fork without exec hang; here everything is started by exec
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.encode_batch(["a"] * 1000)
    running = threading.Thread(target=tokenizer.encode_batch, args=(["a"] * 1000,))
    running.start()
    made = Sandbox(LIMITS)
    assert still_works(made)
    made.close()
    running.join()


def test_outcomes_are_plain():
    found = outcome(Sandbox(LIMITS), "def f(): return 1", "assert f() == 1")
    assert json.loads(json.dumps([vars(test) for test in found.tests])) == [
        {"source": "assert f() == 1", "passed": True, "kind": "", "message": ""}
    ]
