r"""What a continuation's probability is under a posterior.

joint   log 1/S sum_s prod_t p(y_t | x, y_<t, draw s)      one draw holds for the whole continuation
token   sum_t log 1/S sum_s p(y_t | x, y_<t, draw s)       a draw of its own at each token
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
from bara_pyro.types import Law

DRAWN = ("joint", "token")
"""The laws that average over draws of the posterior."""


def check_law(system: System | None, law: str, samples: int) -> None:
    """Refuse a law that a run does not have.

    Args:
        system: the run; None for a language model without one.
        law: see the head of this module.
        samples: number S of draws.

    Raises:
        ConfigError: the law is unknown, there is no run or no draw to average over, or the method's posterior
            is of answers alone (Laplace, a temperature).
    """
    check_choice("law", law, Law)
    if law == "base":
        return
    if system is None:
        raise ConfigError(f"law={law!r} needs a run, and a bare language model was given: choose base.")
    if law == "mean":
        with attached(system):  # which says itself what it cannot show
            return
    if samples < 1:
        raise ConfigError(f"samples={samples} leaves nothing to average over: give at least 1, or law mean.")
    _check_draws(system.model, system.guide)


def _check_draws(model: AdaptedLM, guide: SiteGuide) -> None:
    """Refuse a method whose draws say nothing of tokens that are no answers."""
    if changes_logits(model):
        raise ConfigError(
            f"{type(model).__name__} changes the logits of answers, and a continuation has none: choose law "
            "base."
        )
    if isinstance(guide, EnsembleGuide):
        if guide.average != "probabilities":
            raise ConfigError(
                f"This ensemble was asked to average {guide.average}, of which a continuation has no "
                "mixture: train with method.average=probabilities."
            )
    elif type(guide).predictive is not SiteGuide.predictive:
        raise ConfigError(
            f"The posterior of a {type(guide).__name__} is of the answers that it was fitted to, and a "
            "continuation is none: choose law mean or base."
        )


def log_likelihoods(
    system: System, replies: Sequence[EncodedReply], law: str, *, samples: int, seed: int
) -> list[tuple[float, bool]]:
    """Return the continuations' log-likelihoods under a law of draws, in one forward of all rows and S draws.

    Those that differ in their last token alone, as letters that are answers do, are one row.

    Args:
        system: the run.
        replies: contexts with their continuations; noise is a function of the seed and their `id` alone.
        law: "joint" or "token".
        samples: number S of draws. An ensemble has as many as it has members.
        seed: of the draws.

    Returns:
        Of each `log p(continuation | context)` in nats, and whether every token of the continuation is
        the one that is most probable under the law, given those before it.
    """
    rows = _alike(replies)
    most = max(map(len, rows))
    device = system.backbone.device
    batch = reply_batch([[replies[row[0]]] for row in rows]).to(device)
    ends = [[replies[i].reply[-1] for i in (row * most)[:most]] for row in rows]
    with observing(system.model, ContinuationLikelihood(law, torch.tensor(ends, device=device))):
        # A mixture needs all draws of a row at once, so nothing is to be cut: the caller says how many rows.
        [found, *_] = predict(
            system.model, system.guide, batch, samples=samples, seed=seed, memory_budget=sys.maxsize
        )
    places = {i: found[number, k] for number, row in enumerate(rows) for k, i in enumerate(row)}
    return [(float(places[i][0]), bool(places[i][1])) for i in range(len(replies))]


def _alike(replies: Sequence[EncodedReply]) -> list[list[int]]:
    """Return which replies are the same but for their last token."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for i, reply in enumerate(replies):
        rows.setdefault((reply.id, reply.prompt, reply.reply[:-1]), []).append(i)
    return list(rows.values())


class ContinuationLikelihood(Likelihood):
    """Every token of a continuation under the mixture of all draws that a forward runs; for prediction only.

    Args:
        law: "joint" or "token".
        ends: long, `B x K`: for each row K tokens to end its continuation with, in place of its own last one.
    """

    looks_at_asked = True

    def __init__(self, law: str, ends: Tensor) -> None:
        self.joint = law == "joint"
        self.ends = ends

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Return log-likelihood and greediness (0 or 1), `[draws x] B x K x 2`, of all draws the same.

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
        """Return that nothing is learnt."""
        return False


class _Mixture:
    """The mixture of S draws over B rows, some positions at a time, from left to right.

    What a draw weighs at a token is, of the joint law, the probability it gave to the tokens before: the
    mixture's own law of the next token, whose logarithms sum to that of the whole.
    """

    def __init__(self, draws: int, batch: ReplyBatch, *, joint: bool) -> None:
        self.batch, self.joint, self.log_draws = batch, joint, math.log(draws)
        device = batch.input_ids.device
        self.of_draws = torch.zeros(draws, len(batch), dtype=torch.float64, device=device)
        self.of_tokens = torch.zeros(len(batch), dtype=torch.float64, device=device)
        self.greedy = torch.ones(len(batch), dtype=torch.bool, device=device)

    def add(self, log_probs: Tensor, piece: slice) -> None:
        """Go on by the positions of a piece, `S x B x p x V`."""
        targets, scored = self.batch.targets[:, piece], self.batch.scored[:, piece]
        chosen = log_probs.gather(-1, targets.expand(len(log_probs), -1, -1).unsqueeze(-1)).squeeze(-1)
        chosen = chosen.double().masked_fill(~scored, 0.0)
        before = self.of_draws.unsqueeze(-1) + chosen.cumsum(-1) - chosen
        self.greedy &= ((self._most_probable(log_probs, before) == targets) | ~scored).all(-1)
        self.of_draws += chosen.sum(-1)
        self.of_tokens += (chosen.logsumexp(0) - self.log_draws).sum(-1)

    def ended(self, log_probs: Tensor, ends: Tensor) -> Tensor:
        """End by the last position, `S x B x V`, with each of K tokens.

        Returns:
            Log-likelihood and greediness, float64, `B x K x 2`.
        """
        chosen = log_probs.gather(-1, ends.expand(len(log_probs), -1, -1)).double()
        greedy = self.greedy & (self._most_probable(log_probs, self.of_draws) == ends.mT)
        if self.joint:
            total = (self.of_draws.unsqueeze(-1) + chosen).logsumexp(0) - self.log_draws
        else:
            total = self.of_tokens.unsqueeze(-1) + chosen.logsumexp(0) - self.log_draws
        return torch.stack([total, greedy.mT.double()], dim=-1)

    def _most_probable(self, log_probs: Tensor, before: Tensor) -> Tensor:
        """Return the token that the mixture gives most, where draws gave so much to those before."""
        if self.joint:
            log_probs = log_probs + (before - before.amax(0)).to(log_probs).unsqueeze(-1)
        return log_probs.logsumexp(0).argmax(-1)
