r"""Compute a continuation's log-probability under a posterior, in one of four predictive distributions.

joint   log 1/S sum_s prod_t p(y_t | x, y_<t, draw s)      one draw for the whole continuation
token   sum_t log 1/S sum_s p(y_t | x, y_<t, draw s)       a new draw at each token
mean    every latent at its posterior mean
base    the language model without adapters
"""

import math
import sys
from collections.abc import Sequence
from typing import cast

import pyro
import torch
from pyro import poutine
from torch import BoolTensor, Tensor

from bara_pyro.core.attached import attached, changes_logits
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import Head, Likelihood
from bara_pyro.core.observing import observing
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.replies import EncodedReply, ReplyBatch, reply_batch
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError, check_choice
from bara_pyro.guides.ensemble import EnsembleGuide
from bara_pyro.runs.system import System
from bara_pyro.types import PredictiveName

DRAWN = ("joint", "token")
"""Those that average over draws of the posterior."""


def check_predictive(system: System | None, predictive: str, samples: int) -> None:
    """Raise an error if a run does not support a predictive distribution.

    Args:
        system: the run, or None for a language model without a run.
        predictive: "joint", "token", "mean" or "base".
        samples: number S of draws.

    Raises:
        ConfigError: the name is unknown, it needs a run or draws, or the method's posterior covers only
            answers (Laplace, a temperature).
    """
    check_choice("predictive", predictive, PredictiveName)
    if predictive == "base":
        return
    if system is None:
        raise ConfigError(
            f"predictive={predictive!r} needs a run, but a language model was given: choose base."
        )
    if predictive == "mean":
        with attached(system):  # raises its own errors
            return
    if samples < 1:
        raise ConfigError(f"samples={samples} gives no draws to average: give 1 or more, or choose mean.")
    _check_draws(system.model, system.guide)


def _check_draws(model: AdaptedLM, guide: SiteGuide) -> None:
    """Raise an error if a method's draws apply only to answers."""
    if changes_logits(model):
        raise ConfigError(
            f"{type(model).__name__} changes only the logits of answers, not those of continuations: choose "
            "base."
        )
    if isinstance(guide, EnsembleGuide):
        if guide.average != "probabilities":
            raise ConfigError(
                f"This ensemble averages {guide.average}, which defines no mixture over continuations: train "
                "with method.average=probabilities."
            )
    elif type(guide).predictive is not SiteGuide.predictive:
        raise ConfigError(
            f"The posterior of {type(guide).__name__} covers only the answers it was fitted to, not "
            "continuations: choose mean or base."
        )


def log_likelihoods(
    system: System, replies: Sequence[EncodedReply], predictive: str, *, samples: int, seed: int
) -> list[tuple[float, bool]]:
    """Return log-likelihoods of continuations, averaged over draws, in one forward pass.

    Continuations that differ only in their last token, such as answer letters, share a row.

    Args:
        system: the run.
        replies: contexts with their continuations; the noise is a function of the seed and their `id`.
        predictive: "joint" or "token".
        samples: number S of draws; an ensemble uses its members instead.
        seed: seed of the draws.

    Returns:
        For each continuation, `log p(continuation | context)` in nats, and whether each of its tokens is the
        most probable one given the tokens before it.
    """
    rows = _alike(replies)
    most = max(map(len, rows))
    device = system.backbone.device
    batch = reply_batch([[replies[row[0]]] for row in rows]).to(device)
    ends = [[replies[i].reply[-1] for i in (row * most)[:most]] for row in rows]
    with observing(system.model, ContinuationLikelihood(predictive, torch.tensor(ends, device=device))):
        # A mixture needs all draws of a row at once, so the batch is not split: the caller limits the rows.
        [log_probs, *_] = predict(
            system.model, system.guide, batch, samples=samples, seed=seed, memory_budget=sys.maxsize
        )
    places = {i: log_probs[number, k] for number, row in enumerate(rows) for k, i in enumerate(row)}
    return [(float(places[i][0]), bool(places[i][1])) for i in range(len(replies))]


def _alike(replies: Sequence[EncodedReply]) -> list[list[int]]:
    """Return groups of replies that differ only in their last token."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for i, reply in enumerate(replies):
        rows.setdefault((reply.id, reply.prompt, reply.reply[:-1]), []).append(i)
    return list(rows.values())


class ContinuationLikelihood(Likelihood):
    """Score the tokens of a continuation under the mixture of all draws; for prediction only.

    Args:
        predictive: "joint" or "token".
        ends: long, `B x K`: K alternatives for the last token of each row's continuation.
    """

    looks_at_asked = True

    def __init__(self, predictive: str, ends: Tensor) -> None:
        self.joint = predictive == "joint"
        self.ends = ends

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Return log-likelihood and greediness (0 or 1), `[draws x] B x K x 2`, the same for all draws.

        Raises:
            DataError: the batch has no continuations.
        """
        if not isinstance(batch, ReplyBatch):
            raise DataError("The batch has no continuations: make it with bara_pyro.data.replies.")
        width = max(batch.asked)
        with pyro.plate("positions", width, dim=-1), poutine.mask(mask=cast(BoolTensor, batch.scored)):
            tokens = head.next_token(hidden[..., -width:, :])
        draws = hidden.shape[:-3]
        mixture = _Mixture(math.prod(draws), batch, joint=self.joint)
        last = width - 1
        for piece, log_probs in tokens.distributions():
            mixture.add(log_probs[..., : last - piece.start, :], slice(piece.start, min(piece.stop, last)))
        return mixture.ended(log_probs[..., -1, :], self.ends).expand(*draws, -1, -1, -1)

    def observed(self, batch: Batch) -> bool:
        """Return False: this likelihood is not for training."""
        return False


class _Mixture:
    """The mixture of S draws over B rows, computed from left to right in pieces.

    In `joint`, a draw's weight at a token is the probability that it gave to the previous tokens.
    This is the mixture's conditional distribution of the next token, and its log-probabilities add up to that
    of the whole continuation.
    """

    def __init__(self, draws: int, batch: ReplyBatch, *, joint: bool) -> None:
        self.batch, self.joint, self.log_draws = batch, joint, math.log(draws)
        device = batch.input_ids.device
        self.of_draws = torch.zeros(draws, len(batch), dtype=torch.float64, device=device)
        self.of_tokens = torch.zeros(len(batch), dtype=torch.float64, device=device)
        self.greedy = torch.ones(len(batch), dtype=torch.bool, device=device)

    def add(self, log_probs: Tensor, piece: slice) -> None:
        """Add the positions of a piece; `log_probs` is `S x B x p x V`."""
        targets, scored = self.batch.targets[:, piece], self.batch.scored[:, piece]
        chosen = log_probs.gather(-1, targets.expand(len(log_probs), -1, -1).unsqueeze(-1)).squeeze(-1)
        chosen = chosen.double().masked_fill(~scored, 0.0)
        before = self.of_draws.unsqueeze(-1) + chosen.cumsum(-1) - chosen
        self.greedy &= ((self._most_probable(log_probs, before) == targets) | ~scored).all(-1)
        self.of_draws += chosen.sum(-1)
        self.of_tokens += (chosen.logsumexp(0) - self.log_draws).sum(-1)

    def ended(self, log_probs: Tensor, ends: Tensor) -> Tensor:
        """Return log-likelihood and greediness, float64, `B x K x 2`, at the last position (`S x B x V`)."""
        chosen = log_probs.gather(-1, ends.expand(len(log_probs), -1, -1)).double()
        greedy = self.greedy & (self._most_probable(log_probs, self.of_draws) == ends.mT)
        if self.joint:
            total = (self.of_draws.unsqueeze(-1) + chosen).logsumexp(0) - self.log_draws
        else:
            total = self.of_tokens.unsqueeze(-1) + chosen.logsumexp(0) - self.log_draws
        return torch.stack([total, greedy.mT.double()], dim=-1)

    def _most_probable(self, log_probs: Tensor, before: Tensor) -> Tensor:
        """Return the mixture's most probable token; `before` are the draws' log-weights."""
        if self.joint:
            log_probs = log_probs + (before - before.amax(0)).to(log_probs).unsqueeze(-1)
        return log_probs.logsumexp(0).argmax(-1)
