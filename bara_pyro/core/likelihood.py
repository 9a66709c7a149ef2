"""Likelihoods: the observed site given the last hidden states, the only task-specific part of a program."""

from abc import ABC, abstractmethod
from typing import Protocol, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical, TorchDistribution
from torch import BoolTensor, Tensor

from bara_pyro.core.next_token import NextToken
from bara_pyro.data.replies import ReplyBatch
from bara_pyro.data.split import TextBatch
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError, TrainingError

LIKELIHOOD = "y"
"""Name of the site that every likelihood observes."""


def predicting() -> bool:
    """Return whether the program runs under `pyro.infer.Predictive`, which masks all densities.

    Labels are then not observed; otherwise the predictions of `y` would be the labels.
    """
    return poutine.get_mask() is False


def sample_observed(distribution: TorchDistribution, observed: Tensor | None) -> None:
    """Sample the site `LIKELIHOOD`.

    Raises:
        ConfigError: a handler such as `poutine.condition` sets a value for which Pyro would count rows twice.
    """
    value, shape = pyro.sample(LIKELIHOOD, distribution, obs=observed), distribution.batch_shape[-2:]
    if torch.broadcast_shapes(value.shape[-2:], shape) != shape:
        raise ConfigError(
            f"{LIKELIHOOD!r} is set to a value of the shape {tuple(value.shape)}, but has the shape "
            f"{tuple(shape)}, rows x positions: for labels, give labels.unsqueeze(-1)."
        )


class Head(Protocol):
    """Protocol of the output embedding with its adapter, if it has one."""

    def __call__(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return logits, float32, `[draws x] B x P x C`.

        Call it once per forward pass: the call samples the adapter's local latents at the P positions, inside
        the surrounding plates and mask.

        Args:
            hidden: last hidden states of the last P positions, `[draws x] B x P x d`. Noise is assigned from
                the right, so padding does not change it.
            rows: token ids of the wanted logits, long, `C`; None for the whole vocabulary.
        """
        ...

    def next_token(self, hidden: Tensor) -> NextToken:
        """Return the distribution of the token after each position; once per pass, instead of a call."""
        ...


class Likelihood(ABC):
    """Base of likelihoods: subclasses define the observed site of a batch.

    `observe` runs inside the plate "data" (dimension -2, scaled by N / batch size). Dimension -1 is for
    positions. A likelihood of more than one position opens a plate there, with a mask of the counted
    positions, around both the head and its own sample statement::

        with pyro.plate("positions", width, dim=-1), poutine.mask(mask=batch.counted):
            pyro.sample(LIKELIHOOD, Categorical(logits=head(hidden)), obs=batch.next_ids)
    """

    looks_at_asked = False  # whether `observe` uses only the last `max(batch.asked)` positions

    @abstractmethod
    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Sample the site `LIKELIHOOD`, observed if the batch has its value.

        Args:
            hidden: last hidden states of all tokens, `[draws x] B x T x d`. If the class sets
                `looks_at_asked`, prediction may pass only the last `max(batch.asked)` positions.
            batch: the rows.
            head: see `Head`.

        Returns:
            The result of a forward pass, which `predict` collects, `[draws x] B x ...`; the dimensions after
            the rows must not depend on the padding.
        """

    @abstractmethod
    def observed(self, batch: Batch) -> bool:
        """Return whether the batch has the observed values: True in training, False in prediction."""

    def predicted(self, values: Tensor) -> Tensor:
        """Return the result of `observe` as a prediction, float64 on the CPU (some devices lack float64)."""
        check_numbers(values)
        return values.cpu().double()


def check_numbers(log_probs: Tensor) -> None:
    """Raise a `TrainingError` if log-probabilities contain NaN."""
    if log_probs.isnan().any():
        raise TrainingError(
            "The model's answers are NaN, because its weights or lora_alpha are too large for their dtype: "
            "train again with a lower learning rate (--lr)."
        )


class ClosedSet(Likelihood):
    """Categorical distribution over a closed set of C answers; subclasses define the scores."""

    @abstractmethod
    def scores(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Return the answers' log-probabilities up to a constant per row, `[draws x] B x 1 x C`."""

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Observe the labels; return the answers' log-probabilities, `[draws x] B x C`, float32."""
        log_probs = self.scores(hidden, batch, head).log_softmax(-1)
        # A label cannot be drawn from NaN. A captured prediction draws none and is checked by `predicted`.
        is_captured = log_probs.is_cuda and torch.cuda.is_current_stream_capturing()
        if batch.labels is None and not is_captured:
            check_numbers(log_probs)
        labels = None if batch.labels is None else batch.labels.unsqueeze(-1)
        sample_observed(Categorical(logits=log_probs, validate_args=False), labels)
        return log_probs.squeeze(-2)

    def observed(self, batch: Batch) -> bool:
        """Return whether the batch has labels."""
        return batch.labels is not None

    def predicted(self, values: Tensor) -> Tensor:
        """Return log-probabilities in float64, renormalised: in float32 they sum to 1 only approximately."""
        check_numbers(values)
        return values.cpu().double().log_softmax(-1)


class AnswerLikelihood(ClosedSet):
    """Closed set of one-token answers, scored by their logits at the last position.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.core.prediction import predict
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.test[:3], backbone.tokenizer).batch(range(3), answers)
        >>> model = bp.models.LoRA(backbone, num_data=8, likelihood=bp.AnswerLikelihood())  # the default
        >>> predict(model, bp.guides.DeltaGuide(model), batch, samples=0).exp().sum(-1)  # of A and B, by row
        tensor([[1.0000, 1.0000, 1.0000]], dtype=torch.float64)
    """

    looks_at_asked = True

    def scores(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Return the answer tokens' logits.

        Raises:
            DataError: the batch has no one-token answers.
        """
        if not len(batch.answer_ids):
            raise DataError(
                "AnswerLikelihood needs one-token answers, which the rows do not have: use "
                "likelihood=bp.TextLikelihood() for longer answers, bp.CompletionLikelihood() for replies."
            )
        return head(hidden[..., -1:, :], batch.answer_ids)


def require_closed_set(likelihood: Likelihood, who: str) -> None:
    """Raise a `ConfigError` unless there is a `ClosedSet`, whose answers' scores `who` (plural) needs."""
    if not isinstance(likelihood, ClosedSet):
        raise ConfigError(
            f"{who} need a closed set of answers, but this model has a {type(likelihood).__name__}: train "
            "with task.likelihood=answer."
        )


def require_answer_tokens(likelihood: Likelihood, who: str) -> None:
    """Raise a `ConfigError` unless each answer is one token, whose logits `who` (plural) needs."""
    if not isinstance(likelihood, AnswerLikelihood):
        letters = "labels='letters' (--labels letters)"
        way_out = letters if isinstance(likelihood, ClosedSet) else "likelihood='answer'"
        raise ConfigError(
            f"{who} need answers of one token each, but this model has a {type(likelihood).__name__}: train "
            f"with {way_out}."
        )


# Score in nats of a text that is no option of the row: probability 0 with a finite logarithm.
NOT_OFFERED = -1e4


class TextLikelihood(ClosedSet):
    """Closed set of answers of any length, scored by `log p(text | prompt)` summed over tokens.

    For one-token texts it equals `AnswerLikelihood`.

    Args:
        mean: divide each sum by the text's number of tokens, which reduces the advantage of short texts.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.core.prediction import predict
        >>> from bara_pyro.data import Example
        >>> backbone = bp.load_backbone("microworld")
        >>> rows = [Example("where", "the guest lives in")]
        >>> split = bp.encode(rows, backbone.tokenizer, classes=2, answers=("the marsh", "the coast"))
        >>> batch = split.batch([0], bp.answer_token_ids(backbone.tokenizer, ()))  # texts are scored
        >>> model = bp.models.LoRA(backbone, num_data=1, likelihood=bp.TextLikelihood())
        >>> predict(model, bp.guides.DeltaGuide(model), batch, samples=0).shape  # 1 x rows x texts
        torch.Size([1, 1, 2])
    """

    def __init__(self, *, mean: bool = False) -> None:
        self.mean = mean

    def scores(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Return the sum or mean of each text's token log-probabilities; `NOT_OFFERED` for a missing text.

        Raises:
            DataError: the batch has no texts to score.
        """
        if not isinstance(batch, TextBatch):
            raise DataError("The batch has no texts to score: encode its rows with classes=....")
        width = max(batch.asked)
        # `batch.asked`, but on the device: a replay would repeat the numbers of the rows that were recorded.
        lengths = 1 + cast(Tensor, batch.segments).sign().sum(-1, keepdim=True)
        counted = torch.arange(width, device=hidden.device) >= width - lengths
        with pyro.plate("positions", width, dim=-1), poutine.mask(mask=cast(BoolTensor, counted)):
            logits = head(hidden[..., -width:, :])
        places = (width - 1 - batch.places).expand(*logits.shape[:-2], -1)
        chosen = places * logits.shape[-1] + batch.tokens
        tokens = logits.flatten(-2).gather(-1, chosen) - logits.logsumexp(-1).gather(-1, places)
        sums = tokens.new_zeros(*tokens.shape[:-1], batch.lengths.shape[-1] + 1)
        sums = sums.scatter_add(-1, batch.owners.expand_as(tokens), tokens)[..., :-1]
        if self.mean:
            sums = sums / batch.lengths.clamp_min(1)
        return sums.masked_fill(batch.lengths == 0, NOT_OFFERED).unsqueeze(-2)


class CompletionLikelihood(Likelihood):
    """Likelihood of every token of a reply given the prompt and earlier tokens: supervised fine-tuning.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.core.prediction import predict
        >>> backbone = bp.load_backbone("microworld")
        >>> rows = bp.load_conversations([{"prompt": "the guest lives in", "completion": " the marsh ."}])
        >>> replies = bp.encode_replies(rows, backbone.tokenizer)
        >>> model = bp.models.BaRA(backbone, num_data=1, form="gate", likelihood=bp.CompletionLikelihood())
        >>> log_probs = predict(model, bp.guides.WeibullGuide(model), replies.batch([0]), samples=3)
        >>> log_probs.shape, bool((log_probs < 0).all())  # S x rows, of the whole reply, in nats
        (torch.Size([3, 1]), True)
    """

    looks_at_asked = True

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Observe the replies' tokens; return each row's sum of log-probabilities, `[draws x] B`.

        Raises:
            DataError: the batch has no replies.
        """
        if not isinstance(batch, ReplyBatch):
            raise DataError("The batch has no replies to learn from: make it with bara_pyro.data.replies.")
        width = max(batch.asked)
        targets = None if predicting() else batch.targets
        with pyro.plate("positions", width, dim=-1), poutine.mask(mask=cast(BoolTensor, batch.scored)):
            distribution = head.next_token(hidden[..., -width:, :])
            sample_observed(distribution, targets)
        return distribution.log_prob(batch.targets).masked_fill(~batch.scored, 0.0).sum(-1)

    def observed(self, batch: Batch) -> bool:
        """Return whether the batch is for training on its replies."""
        return isinstance(batch, ReplyBatch) and batch.training
