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
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.likelihood import CompletionLikelihood, Head, Likelihood
from bara_pyro.core.observing import observing
from bara_pyro.core.posterior import Addressed, PosteriorMean, addresses_of, check_guide
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
        replies: prompts with replies, whoever wrote them, as tokens; the draws go by their identifiers.
        samples: number K of draws; 0: the posterior mean, whose epistemic part is 0. An ensemble's members
            are all the draws there are, whatever the number, and it has no mean.
        seed: of the draws.
        memory_budget: bytes that the hidden states of all layers of a forward may take, roughly.
        on_replies: called with the number of replies just read.

    Raises:
        ConfigError: `samples` is negative, or 0 of an ensemble, a reply is longer than the language model's
            context, the guide belongs to another model, or its predictive distribution is not that of draws
            through the program (Laplace, a temperature).

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.extras.replies.generation import reply_uncertainty
        >>> backbone = bp.load_backbone("microworld")
        >>> rows = bp.load_conversations([{"prompt": "the guest lives in", "completion": " the marsh ."}])
        >>> [[told]] = bp.encode_replies(rows, backbone.tokenizer).rows
        >>> model = bp.models.BaRA(backbone, num_data=640, form="gate", likelihood=bp.CompletionLikelihood())
        >>> [found] = reply_uncertainty(model, bp.guides.WeibullGuide(model), [told], samples=4)
        >>> len(found.total)  # of each of the reply's tokens
        4
        >>> abs(found.total[0] - found.aleatoric[0] - found.epistemic[0]) < 1e-5
        True
    """
    check_guide(guide, model)
    if samples < 0:
        raise ConfigError(f"samples is {samples}: give 0 (posterior mean) or more.")
    if model.members and samples == 0:
        raise ConfigError("samples is 0: an ensemble has members and no mean, so give 1 or more.")
    if type(guide).predictive is not SiteGuide.predictive and not model.members:
        raise ConfigError(f"The draws of a {type(guide).__name__} are not of adapters in one language model.")
    if changes_logits(model):
        raise ConfigError(f"{type(model).__name__} changes the logits of answers, and a reply has none.")
    for told in replies:
        model.backbone.check_room(len(told), f"The reply {told.id!r} and its prompt")
    draws = samples if model.latents and guide.stochastic else 0
    out: list[ReplyUncertainty] = []
    with observing(model, _Distributions()):
        for part in _parts(model, replies, max(1, draws, model.members), memory_budget):
            batch = reply_batch([[reply] for reply in part])
            found = _read(model, guide, batch.to(model.backbone.device), draws, seed)
            out += [_of(row, len(reply.reply)) for row, reply in zip(found.cpu(), part, strict=True)]
            if on_replies is not None:
                on_replies(len(part))
    return out


@torch.no_grad()
def _read(model: AdaptedLM, guide: SiteGuide, batch: ReplyBatch, draws: int, seed: int) -> Tensor:
    """Return what `_Distributions` says of a batch."""
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
    """The distributions of the tokens of a reply under all draws, a piece of the positions at a time."""

    looks_at_asked = CompletionLikelihood.looks_at_asked

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Return `B x W x 4`: log-probability, total and aleatoric of each token, the reply's own."""
        if not isinstance(batch, ReplyBatch):
            raise ConfigError("The batch has no replies: make it with bara_pyro.data.replies.")
        width = batch.targets.shape[-1]
        with pyro.plate("positions", width, dim=-1), poutine.mask(mask=cast(BoolTensor, batch.scored)):
            next_token = head.next_token(hidden[..., -width:, :])
        pieces, own = [], []
        # Four copies at once: the distributions, their mean, and what entropies take.
        for piece, log_probs in next_token.distributions(4):
            mean = log_probs.logsumexp(0) - math.log(len(log_probs))
            chosen = batch.targets[:, piece].unsqueeze(-1)
            entropies = -(log_probs.exp() * log_probs).sum(-1).mean(0)
            total = -(mean.exp() * mean).sum(-1)
            pieces.append(torch.stack([mean.gather(-1, chosen).squeeze(-1), total, entropies], dim=-1))
            own.append(log_probs.gather(-1, chosen.expand(*log_probs.shape[:-1], 1)).squeeze(-1))
        whole = torch.cat(own, dim=-1).masked_fill(~batch.scored, 0.0).double().sum(-1)  # draws x B
        joint = whole.logsumexp(0) - math.log(len(whole))
        tokens = torch.cat(pieces, dim=-2).double()
        return torch.cat([tokens, joint[:, None, None].expand(*tokens.shape[:-1], 1)], dim=-1)

    def observed(self, batch: Batch) -> bool:
        """Return False: nothing is learnt here."""
        return False


def _of(row: Tensor, count: int) -> ReplyUncertainty:
    """Return what is said of a reply of `count` tokens, from `W x 4`, of which it has the last rows."""
    log_probs, total, aleatoric, joint = row[-count:].unbind(-1)
    epistemic = (total - aleatoric).clamp_min(0.0)  # of equal distributions a rounding error
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
    """Cut replies into pieces whose forwards, all draws of each at once, fit the budget."""
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
