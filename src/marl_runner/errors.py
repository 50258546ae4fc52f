"""The errors marl-runner raises on purpose.

One root, so a caller can catch everything of ours; each error is also the builtin kind it would otherwise
have been, so `except ValueError` keeps working. `ConfigError` and `DataError` mean that nothing was trained.
"""


class MarlRunnerError(Exception):
    """Root of every error raised on purpose by marl-runner."""


class ConfigError(MarlRunnerError, ValueError):
    """A setting, or a relation between settings, is wrong; nothing was trained."""


class ArgumentError(ConfigError, TypeError):
    """A constructor was given a keyword that it does not take; nothing was trained."""


class DataError(MarlRunnerError, ValueError):
    """A dataset, or a prompt made from it, cannot be used; nothing was trained."""


class RewardError(MarlRunnerError, RuntimeError):
    """A reward function raised, or returned something that is not one number per joint action."""


class TransitionError(MarlRunnerError, RuntimeError):
    """An external transition raised, or did not return one prompt per agent."""


class RolloutError(MarlRunnerError, RuntimeError):
    """A rollout could not go on: a prompt made while training is too long, or a model cannot be sampled."""


class NumericalError(MarlRunnerError, ArithmeticError):
    """A loss, gradient, return or weight is not a finite number; the weights were left as they were."""


class RunFolderError(MarlRunnerError, FileExistsError):
    """The run folder belongs to another live run, or already holds an earlier one; nothing was trained."""
