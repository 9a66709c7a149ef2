"""Compute the total, aleatoric and epistemic uncertainty of each token of given replies."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import pyro
import torch
from pyro import poutine
from torch import BoolTensor, Tensor

from bara_pyro.core.attached import changes_logits
from bara_pyro.core.guide import SiteGuide, check_guide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.likelihood import CompletionLikelihood, Head, Likelihood
from bara_pyro.core.observing import observing
from bara_pyro.core.posterior import Addressed, PosteriorMean, addresses_of
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.resuming import narrowed
from bara_pyro.data.replies import EncodedReply, ReplyBatch, reply_batch
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError

BUDGET = 2**28


@dataclass(frozen=True)
class ReplyUncertainty:
    """Uncertainty about each token of a reply, given those before it, in nats.

    With K draws of the posterior, `p_k` the next token's distribution under draw k and `p` their mean::

        total = H(p)    aleatoric = mean_k H(p_k)    epistemic = total - aleatoric

    Attributes:
        log_probs: `log p(token)` under the mean distribution, one number per token.
        total, aleatoric, epistemic: one number per token.
        log_prob: `log mean_k p_k(reply)` of the whole reply, with one draw for all of its tokens.
    """

    log_probs: tuple[float, ...]
    total: tuple[float, ...]
    aleatoric: tuple[float, ...]
    epistemic: tuple[float, ...]
    log_prob: float


def reply_uncertainty(
    model: AdaptedLM,
    guide: SiteGuide,
    replies: Sequence[EncodedReply],
    *,
    samples: int = 10,
    seed: int = 0,
    memory_budget: int = BUDGET,
    on_replies: Callable[[int], None] | None = None,
) -> list[ReplyUncertainty]:
    """Return the uncertainty of each token of given replies, under draws of the posterior.

    Args:
        model: the program.
        guide: its fitted guide.
        replies: encoded prompts with replies from any source. The draws depend on their identifiers.
        samples: number K of draws; 0: the posterior mean, with an epistemic part of 0. An ensemble always
            uses all its members and has no mean.
        seed: seed of the draws.
        memory_budget: approximate bytes for the hidden states of all layers of a forward pass.
        on_replies: called after each batch with its number of replies.

    Raises:
        ConfigError: `samples` is negative, or 0 for an ensemble; a reply is longer than the language model's
            context; the guide belongs to another model; or the method does not predict by draws through the
            program (Laplace, a temperature).

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.extras.replies.generation import reply_uncertainty
        >>> backbone = bp.load_backbone("microworld")
        >>> rows = bp.load_conversations([{"prompt": "the guest lives in", "completion": " the marsh ."}])
        >>> [[reply]] = bp.encode_replies(rows, backbone.tokenizer).rows
        >>> model = bp.models.BaRA(backbone, num_data=640, form="gate", likelihood=bp.CompletionLikelihood())
        >>> [result] = reply_uncertainty(model, bp.guides.WeibullGuide(model), [reply], samples=4)
        >>> len(result.total)  # one number per token of the reply
        4
        >>> abs(result.total[0] - result.aleatoric[0] - result.epistemic[0]) < 1e-5
        True
    """
    check_guide(guide, model)
    if samples < 0:
        raise ConfigError(f"samples is {samples}: give 0 (posterior mean) or more.")
    if model.members and samples == 0:
        raise ConfigError("samples is 0, but an ensemble has no mean: give 1 or more.")
    if type(guide).predictive is not SiteGuide.predictive and not model.members:
        raise ConfigError(
            f"Replies need draws of the adapters, which {type(guide).__name__} does not provide: train with "
            "another method, for example bara-gate."
        )
    if changes_logits(model):
        raise ConfigError(
            f"{type(model).__name__} changes the logits of answers, which replies do not have: train with "
            "another method, for example bara-gate."
        )
    for row in replies:
        model.backbone.check_room(len(row), f"The reply {row.id!r} and its prompt")
    draws = samples if model.latents and guide.stochastic else 0
    out: list[ReplyUncertainty] = []
    with observing(model, _Distributions()):
        for part in _parts(model, replies, max(1, draws, model.members), memory_budget):
            batch = reply_batch([[reply] for reply in part])
            numbers = _read(model, guide, batch.to(model.backbone.device), draws, seed)
            out += [_of(row, len(reply.reply)) for row, reply in zip(numbers.cpu(), part, strict=True)]
            if on_replies is not None:
                on_replies(len(part))
    return out


@torch.no_grad()
def _read(model: AdaptedLM, guide: SiteGuide, batch: ReplyBatch, draws: int, seed: int) -> Tensor:
    """Return the values of `_Distributions` for a batch, `B x W x 4`."""
    batch = batch.questions(slice(None))
    device = batch.input_ids.device
    with PROGRAM, torch.random.fork_rng([device] if device.type == "cuda" else []):
        if not draws:
            with PosteriorMean(guide):
                return model.forward(narrowed(model, batch))
        addresses = addresses_of(batch, seed, slice(0, draws), 1, model.latents.local_shapes)
        with pyro.plate("draws", draws, dim=-3), Addressed(guide, addresses):
            return model.forward(narrowed(model, batch))


class _Distributions(Likelihood):
    """Computes the statistics of a reply's tokens under all draws, some positions at a time."""

    looks_at_asked = CompletionLikelihood.looks_at_asked

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Return `B x W x 4`: log-probability, total and aleatoric per token, and the reply's `log_prob`."""
        if not isinstance(batch, ReplyBatch):
            raise ConfigError("The batch has no replies: create it with bara_pyro.data.replies.reply_batch.")
        width = batch.targets.shape[-1]
        with pyro.plate("positions", width, dim=-1), poutine.mask(mask=cast(BoolTensor, batch.scored)):
            next_token = head.next_token(hidden[..., -width:, :])
        pieces, by_draw = [], []
        # Four copies at a time: the distributions, their mean, and two temporary ones of the entropies.
        for piece, log_probs in next_token.distributions(4):
            mean = log_probs.logsumexp(0) - math.log(len(log_probs))
            chosen = batch.targets[:, piece].unsqueeze(-1)
            entropies = -(log_probs.exp() * log_probs).sum(-1).mean(0)
            total = -(mean.exp() * mean).sum(-1)
            pieces.append(torch.stack([mean.gather(-1, chosen).squeeze(-1), total, entropies], dim=-1))
            by_draw.append(log_probs.gather(-1, chosen.expand(*log_probs.shape[:-1], 1)).squeeze(-1))
        of_reply = torch.cat(by_draw, dim=-1).masked_fill(~batch.scored, 0.0).double().sum(-1)  # draws x B
        joint = of_reply.logsumexp(0) - math.log(len(of_reply))
        tokens = torch.cat(pieces, dim=-2).double()
        return torch.cat([tokens, joint[:, None, None].expand(*tokens.shape[:-1], 1)], dim=-1)

    def observed(self, batch: Batch) -> bool:
        """Return False, because nothing is trained here."""
        return False


def _of(row: Tensor, count: int) -> ReplyUncertainty:
    """Return the uncertainty of a reply of `count` tokens, the last rows of `W x 4`."""
    log_probs, total, aleatoric, joint = row[-count:].unbind(-1)
    epistemic = (total - aleatoric).clamp_min(0.0)  # equal distributions can give a negative rounding error
    return ReplyUncertainty(
        tuple(log_probs.tolist()),
        tuple(total.tolist()),
        tuple(aleatoric.tolist()),
        tuple(epistemic.tolist()),
        float(joint[-1]),
    )


def _parts(
    model: AdaptedLM, replies: Sequence[EncodedReply], draws: int, budget: int
) -> Iterator[Sequence[EncodedReply]]:
    """Split replies into batches whose forward pass, with all draws at once, fits the budget."""
    config = model.backbone.lm.config.get_text_config()
    inner = int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    each = 4 * draws * (8 * int(config.hidden_size) + 3 * inner)
    start = 0
    while start < len(replies):
        end, longest = start + 1, len(replies[start])
        while end < len(replies):
            longest = max(longest, len(replies[end]))
            if (end + 1 - start) * longest * each > budget:
                break
            end += 1
        yield replies[start:end]
        start = end
