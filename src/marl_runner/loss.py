"""The loss, as pure functions of log-probabilities and advantages."""

from __future__ import annotations

import torch


def at_least_float32(logits: torch.Tensor) -> torch.Tensor:
    """The same numbers, in float32 where they were of half precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_log_probs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of given tokens, without a second tensor of vocabulary size.

    log softmax(logits)[token] = logits[token] - logsumexp(logits), at least in float32.

    Args:
        logits: [..., V].
        token_ids: [...], in 0 … V-1.

    Returns:
        [...], in nats.
    """
    logits = at_least_float32(logits)
    chosen = logits.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(logits, dim=-1)


def policy_gradient_loss(log_probs_R: torch.Tensor, weights_R: torch.Tensor) -> torch.Tensor:
    """-weight * log pi(completion), the REINFORCE surrogate of each completion.

    No length normalisation, importance ratio or clipping. The weight is the advantage over the number of completions
    that the loss is a mean of, so that these can be processed in several micro-batches.

    Args:
        log_probs_R: [R], log-probability of each whole completion (sum over its tokens), with gradient.
        weights_R: [R], constants.

    Returns:
        [R].
    """
    if log_probs_R.shape != weights_R.shape:
        raise ValueError(f"log_probs {tuple(log_probs_R.shape)} and weights {tuple(weights_R.shape)} differ")
    return -(weights_R.detach() * log_probs_R)
