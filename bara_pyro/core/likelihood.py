"""What is observed, given the last hidden states: the only part of a program that knows the task."""

from abc import ABC, abstractmethod
from typing import Protocol, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical
from torch import BoolTensor, Tensor

from bara_pyro.core.next_token import NextToken
from bara_pyro.data.replies import ReplyBatch
from bara_pyro.data.texts import TextBatch
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError, TrainingError

LIKELIHOOD = "y"
"""The site that every likelihood observes."""


def predicting() -> bool:
    """Return whether whoever runs the program counts no density: `pyro.infer.Predictive`, which wants draws.

    What is known of the rows is then not observed: `y` would be the labels.
    """
    return poutine.get_mask() is False


class Head(Protocol):
    """The output embedding with its adapter, if it has one."""

    def __call__(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return logits, float32, `[draws x] B x P x C`.

        An adapter's local latents are sampled at the P positions, in the plates and under the mask around the
        call: to be called once a pass.

        Args:
            hidden: last hidden states of the last P positions, `[draws x] B x P x d`: noise is dealt out from
                the right, so that padding takes none of it.
            rows: long, `C`: the tokens whose logits are wanted; the whole vocabulary if None.
        """
        ...

    def next_token(self, hidden: Tensor) -> NextToken:
        """Return the distribution of the token behind each position; once a pass, in place of a call."""
        ...


class Likelihood(ABC):
    """What is observed of a batch. A subclass may read what it likes from a batch of its own kind.

    `observe` runs inside the plate "data" (dimension -2, scaled by N / batch size). Dimension -1 is that of
    positions: a likelihood that looks at more than one opens a plate there, under a mask of those that count,
    around both the head and its own statement::

        with pyro.plate("positions", width, dim=-1), poutine.mask(mask=batch.counted):
            pyro.sample(LIKELIHOOD, Categorical(logits=head(hidden)), obs=batch.next_ids)
    """

    looks_at_asked = False  # whether `observe` looks at the last `max(batch.asked)` positions alone

    @abstractmethod
    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Sample the site `LIKELIHOOD`, observed where the batch knows its value.

        Args:
            hidden: last hidden states of all tokens, `[draws x] B x T x d`; in prediction of the last
                `max(batch.asked)` at least, where the class says that it `looks_at_asked` alone.
            batch: the rows.
            head: see `Head`.

        Returns:
            What a forward pass of the program returns and `predict` collects, `[draws x] B x ...`; what comes
            after the rows must not depend on the padding.
        """

    @abstractmethod
    def observed(self, batch: Batch) -> bool:
        """Return whether the batch knows what is observed: whether this is training, not prediction."""

    def predicted(self, values: Tensor) -> Tensor:
        """Return what `observe` returned as a prediction, in float64, on the CPU: some devices have none."""
        check_numbers(values)
        return values.cpu().double()


def check_numbers(log_probs: Tensor) -> None:
    """Refuse log-probabilities that are not numbers, of which no prediction can be made.

    Raises:
        TrainingError: one is NaN.
    """
    if log_probs.isnan().any():
        raise TrainingError(
            "The model's answers are not numbers (NaN): its weights or lora_alpha are beyond what their type "
            "holds, train again with a lower lr (--lr)."
        )


class ClosedSet(Likelihood):
    """One categorical over a closed set of C answers; a subclass says what each scores."""

    @abstractmethod
    def scores(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Return the answers' log-probabilities up to a constant a row, `[draws x] B x 1 x C`."""

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Observe the labels; return the answers' log-probabilities, `[draws x] B x C`, float32."""
        log_probs = self.scores(hidden, batch, head).log_softmax(-1)
        if batch.labels is None:
            check_numbers(log_probs)  # no label could be drawn
        labels = None if batch.labels is None else batch.labels.unsqueeze(-1)
        pyro.sample(LIKELIHOOD, Categorical(logits=log_probs, validate_args=False), obs=labels)
        return log_probs.squeeze(-2)

    def observed(self, batch: Batch) -> bool:
        """Return whether the batch has labels."""
        return batch.labels is not None

    def predicted(self, values: Tensor) -> Tensor:
        """Return the log-probabilities, which float32 left a little off 1 in sum, in float64."""
        check_numbers(values)
        return values.cpu().double().log_softmax(-1)


class AnswerLikelihood(ClosedSet):
    """A closed set of answers that are one token each: their logits at the last position.

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
            DataError: the batch has no answers of one token.
        """
        if not len(batch.answer_ids):
            raise DataError(
                "The rows have no answers of one token, and the likelihood is of such: make the program with "
                "likelihood=bp.TextLikelihood() for whole texts, bp.CompletionLikelihood() for replies."
            )
        return head(hidden[..., -1:, :], batch.answer_ids)


def require_closed_set(likelihood: Likelihood, who: str) -> None:
    """Refuse a program that does not choose among a closed set of answers.

    Args:
        likelihood: of the program.
        who: reads the answers' scores, in the plural, as a sentence begins.

    Raises:
        ConfigError: the likelihood is another than a `ClosedSet`.
    """
    if not isinstance(likelihood, ClosedSet):
        raise ConfigError(
            f"{who} are for a closed set of answers, and this model has another likelihood "
            f"({type(likelihood).__name__}): train with task.likelihood=answer."
        )


def require_answer_tokens(likelihood: Likelihood, who: str) -> None:
    """Refuse a program whose answers are not one token each.

    Args:
        likelihood: of the program.
        who: reads the answer tokens' logits, in the plural, as a sentence begins.

    Raises:
        ConfigError: the likelihood is another than `AnswerLikelihood`.
    """
    if not isinstance(likelihood, AnswerLikelihood):
        way_out = "task.labels=letters" if isinstance(likelihood, ClosedSet) else "task.likelihood=answer"
        raise ConfigError(
            f"{who} are for answers of one token each, and this model has another likelihood "
            f"({type(likelihood).__name__}): train with {way_out}."
        )


# The score, in nats, of a text that a row does not offer: its probability is 0, its logarithm a number.
NOT_OFFERED = -1e4


class TextLikelihood(ClosedSet):
    """A closed set of answers that are texts of any length: `log p(text | prompt)`, summed over tokens.

    For texts of one token each this is `AnswerLikelihood`.

    Args:
        mean: divide each sum by the text's number of tokens, which favours short texts less.

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
        """Return each text's sum, or mean, of its tokens' log-probabilities; `NOT_OFFERED` without a text.

        Raises:
            DataError: the batch has no texts.
        """
        if not isinstance(batch, TextBatch):
            raise DataError("The batch has no texts to score: encode its rows with classes=....")
        asked = torch.tensor(batch.asked, device=hidden.device)
        width = max(batch.asked)
        counted = torch.arange(width, device=hidden.device) >= width - asked.unsqueeze(-1)
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
    """Every token of a reply, given the prompt and the tokens before it: supervised fine-tuning.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.core.prediction import predict
        >>> backbone = bp.load_backbone("microworld")
        >>> rows = bp.load_conversations([{"prompt": "the guest lives in", "completion": " the marsh ."}])
        >>> replies = bp.encode_replies(rows, backbone.tokenizer)
        >>> model = bp.models.BaRA(backbone, num_data=1, form="gate", likelihood=bp.CompletionLikelihood())
        >>> log_probs = predict(model, bp.guides.WeibullGuide(model), replies.batch([0]), samples=3)
        >>> log_probs.shape, bool((log_probs < 0).all())  # S x rows: of the whole reply, in nats
        (torch.Size([3, 1]), True)
    """

    looks_at_asked = True

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Observe the replies' tokens; return the sum of their log-probabilities a row, `[draws x] B`.

        Raises:
            DataError: the batch has no replies.
        """
        if not isinstance(batch, ReplyBatch):
            raise DataError("The batch has no replies to learn: make it with bara_pyro.data.replies.")
        width = max(batch.asked)
        targets = None if predicting() else batch.targets
        with pyro.plate("positions", width, dim=-1), poutine.mask(mask=cast(BoolTensor, batch.scored)):
            distribution = head.next_token(hidden[..., -width:, :])
            pyro.sample(LIKELIHOOD, distribution, obs=targets)
        return distribution.log_prob(batch.targets).masked_fill(~batch.scored, 0.0).sum(-1)

    def observed(self, batch: Batch) -> bool:
        """Return whether the replies are to be learnt."""
        return isinstance(batch, ReplyBatch) and batch.training
