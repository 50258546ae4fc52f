"""Gradient checkpointing: layers keep their input alone, and compute the rest again in the backward pass.

transformers has it for models in training mode only, where dropout would make the scored policy differ from the
sampled one. Source: Chen et al. (2016), "Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from marl_runner.errors import ConfigError


def layers_of(model: Any) -> list[Any]:
    """The layers that can be computed again."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def check_has_layers(model: Any) -> None:
    """Raises ConfigError if no layer of the model can be computed again."""
    if not layers_of(model):
        raise ConfigError(
            f"{type(model).__name__} has no layers for gradient checkpointing; set trainer.gradient_checkpointing=false"
        )


@contextmanager
def checkpointed_layers(model: Any) -> Iterator[None]:
    """Makes every layer forget what it computes in this block; the model's mode is left as it is."""
    layers = layers_of(model)
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
