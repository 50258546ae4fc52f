"""`marl-eval`: arguments → the run's configuration → heavy imports → evaluate → exit code.

Exit codes: 0 done; 1 the evaluation failed; 2 the command, the configuration or the data is wrong and nothing was
evaluated; 128 + signal number when stopped by a signal.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from marl_runner.cli import CONFIG_EXIT, FAILED_EXIT, FULL_ERROR, SIGNAL_EXIT, advice_log, process_state
from marl_runner.errors import ConfigError, DataError, MarlRunnerError
from marl_runner.explain import explain
from marl_runner.stopping import Stopped
from marl_runner.team_evaluation.passing import PassRule
from marl_runner.team_evaluation.players import Player, lineup
from marl_runner.team_evaluation.request import EvalRequest, Swap, check_output, default_output
from marl_runner.team_evaluation.saved_run import saved_config

DESCRIPTION = "Evaluates the trained team of a run folder: rewards, pass@k and intervals, as a table and a JSON file."
EPILOG = """\
examples:
  marl-eval outputs/2026-01-31/12-00-00-000000
  marl-eval RUN --samples 10 --k 1 5 10 dataset.eval_fraction=0.2 trainer.temperature=0.8
  marl-eval RUN --greedy --pass 'ratio>=1' --texts
  marl-eval RUN --swap 1=OTHER_RUN     agent 1 of another run in the place of agent 1
  marl-eval RUN --base 0               the untrained model in the place of agent 0
"""


class Parser(argparse.ArgumentParser):
    """Ends a wrong command by an error of ours instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"{message.removeprefix('argument ')} (marl-eval --help lists the arguments)")

    def flags(self) -> list[str]:
        """Every option's name."""
        return [flag for action in self._actions for flag in action.option_strings]


def main() -> NoReturn:
    """Entry point of the console script; ends the process with the exit code."""
    code = command()
    if code > SIGNAL_EXIT:
        # What a thread is still doing, in a user's reward above all, is not waited for.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def command() -> int:
    """Runs the command line and returns the exit code; HYDRA_FULL_ERROR=1 keeps the whole trace."""
    wants_trace = os.environ.get(FULL_ERROR) == "1"
    with process_state():
        try:
            run(*prepared(sys.argv[1:]))
        except Stopped as stopped:
            print(f"marl-eval: stopped by {stopped}", file=sys.stderr)
            return stopped.exit_code
        except BrokenPipeError:
            # Whoever read the output has gone, as in `marl-eval RUN | head`; nobody is left to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return SIGNAL_EXIT + signal.SIGPIPE
        except MarlRunnerError as error:
            failure = error
        else:
            return 0
    if wants_trace:
        raise failure
    print(f"marl-eval: {explain(failure)}", file=sys.stderr)
    return CONFIG_EXIT if isinstance(failure, (ConfigError, DataError)) else FAILED_EXIT


def prepared(arguments: Sequence[str]) -> tuple[EvalRequest, DictConfig, list[Player]]:
    """What is asked for, the configuration it is asked of, and who plays; nothing heavy is imported.

    Raises:
        ConfigError: One short sentence with the value and the fix.
    """
    request = request_of(arguments)
    try:
        cfg = saved_config(request.folder, request.overrides)
        check_output(request.output)
        return request, cfg, lineup(request.folder, cfg.agents.num_agents, request.swaps, request.bases)
    except (HydraException, OmegaConfBaseException, YAMLError, OSError) as error:
        raise ConfigError(explain(error, request.overrides)) from error


def run(request: EvalRequest, cfg: DictConfig, players: Sequence[Player]) -> None:
    """The evaluation itself.

    Raises:
        MarlRunnerError: What ended it.
    """
    # Its warnings are about training.
    advice_log.setLevel(logging.ERROR)
    from marl_runner.team_evaluation.command import evaluate

    try:
        evaluate(request, cfg, players)
    except SystemExit as error:
        # Left alone, exit(0) in a user's function would end an evaluation with the code of a finished one.
        raise MarlRunnerError(f"something in the evaluation called exit({error.code})") from error


def request_of(arguments: Sequence[str]) -> EvalRequest:
    """What the arguments ask for.

    Raises:
        ConfigError: They are not understood, or contradict each other.
    """
    parser = make_parser()
    given, unknown = parser.parse_known_intermixed_args(list(arguments))
    flags = [argument for argument in unknown if argument.startswith("-")]
    if flags:
        near = get_close_matches(flags[0].partition("=")[0], parser.flags(), n=1)
        parser.error(f"unknown option {flags[0]}" + (f"; nearest: {near[0]}" if near else ""))
    # Behind --k 1 5 stands what argparse takes for more of its values.
    values = given.k or []
    overrides = [*given.overrides, *(value for value in values if "=" in value)]
    for override in overrides:
        if "=" not in override:
            parser.error(f"{override} is no KEY=VALUE, and {given.folder} is the run folder: one at a time")
    try:
        ks = {at_least(1)(value) for value in values if "=" not in value}
    except argparse.ArgumentTypeError as error:
        parser.error(f"--k: {error}")
    return EvalRequest(
        folder=given.folder,
        overrides=tuple(overrides),
        split=given.split,
        num_tasks=given.num_tasks,
        num_samples=given.samples,
        ks=tuple(sorted(ks)) or None,
        greedy=given.greedy,
        seed=given.seed,
        batch_size=given.batch_size,
        rule=given.rule,
        resamples=given.resamples,
        swaps=tuple(given.swap),
        bases=tuple(given.base),
        output=given.output or default_output(given.folder, given.split),
        texts=given.texts,
    )


def make_parser() -> Parser:
    """All arguments, with their defaults."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser("marl-eval", None, DESCRIPTION, EPILOG, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add("folder", metavar="RUN_FOLDER", type=Path, help="folder of a finished run")
    add(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help="change the run's configuration, as for marl-train",
    )
    add("--split", choices=("eval", "train"), default="eval", help="rows of the run's dataset (default: eval)")
    add("--num-tasks", metavar="N", type=at_least(1), help="at most the first N rows (default: all)")
    add("--samples", metavar="n", type=at_least(1), default=1, help="paths of each task (default: 1)")
    add("--k", metavar="k", nargs="+", help="each k of pass@k, at most n (default: 1)")
    add(
        "--pass", metavar="NAME>=VALUE", dest="rule", type=pass_rule, help="component, or reward, of a path that passes"
    )
    add("--greedy", action="store_true", help="the likeliest token every time, instead of sampling")
    add("--seed", metavar="N", type=at_least(0), help="of the evaluation's draws (default: the run's)")
    add("--batch-size", metavar="N", type=at_least(1), help="paths played together")
    add("--resamples", metavar="N", type=at_least(100), default=10_000, help="of the bootstrap")
    add("--swap", metavar="AGENT=RUN[:INDEX]", type=swap, action="append", default=[], help="agent of another run")
    add("--base", metavar="AGENT", type=at_least(0), action="append", default=[], help="untrained model")
    add("--output", metavar="PATH", type=Path, help="JSON file to write (default: RUN_FOLDER/eval/SPLIT-TIME.json)")
    add("--texts", action="store_true", help="write prompts and completions too")
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """Reads a whole number that is not less than `least`."""

    def number(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be an integer >= {least}, got {text}")
        return int(text)

    return number


def pass_rule(text: str) -> PassRule:
    """Reads `NAME>=VALUE`."""
    name, _, least = text.partition(">=")
    try:
        value = float(least)
    except ValueError:
        value = math.nan
    if not name.strip() or not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be NAME>=VALUE with a number, as 'tests>=1', got {text!r}")
    return PassRule(name.strip(), value)


def swap(text: str) -> Swap:
    """Reads `AGENT=RUN` or `AGENT=RUN:INDEX`; without an index it is the agent of the same place."""
    found = re.fullmatch(r"([0-9]+)=(.+?)(?::([0-9]+))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be AGENT=RUN_FOLDER, as 1=outputs/other, got {text!r}")
    agent, folder, index = found.groups()
    whole = Path(text.partition("=")[2])
    if index is None or whole.is_dir():
        return Swap(int(agent), whole, int(agent))
    return Swap(int(agent), Path(folder), int(index))
