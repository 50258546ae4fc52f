"""The loss, as pure functions of log-probabilities and advantages."""

from __future__ import annotations

import torch


def token_log_probs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of given tokens, without a second tensor of vocabulary size.

    log softmax(logits)[token] = logits[token] - logsumexp(logits), at least in float32.

    Args:
        logits: [..., V].
        token_ids: [...], in 0 … V-1.

    Returns:
        [...], in nats.
    """
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    chosen = logits.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(logits, dim=-1)


def policy_gradient_loss(log_probs_K: torch.Tensor, advantages_K: torch.Tensor) -> torch.Tensor:
    """-sum_k A_k * log pi(completion k), the sum of REINFORCE surrogates.

    No length normalisation, importance ratio or clipping. The caller divides by the number
    of completions in the group, so that a group can be processed in several micro-batches.

    Args:
        log_probs_K: [K], log-probability of each whole completion (sum over its tokens), with gradient.
        advantages_K: [K], constants.

    Returns:
        Scalar.
    """
    if log_probs_K.shape != advantages_K.shape:
        raise ValueError(f"log_probs {tuple(log_probs_K.shape)} and advantages {tuple(advantages_K.shape)} differ")
    return -(advantages_K.detach() * log_probs_K).sum()
