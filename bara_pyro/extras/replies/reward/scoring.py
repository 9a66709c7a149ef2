"""Score replies with a reward model."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bara_pyro.data.conversations import Conversation, Message
from bara_pyro.errors import BackboneError, ConfigError, DataError
from bara_pyro.extras.replies.reward.model import RewardModel
from bara_pyro.extras.replies.reward.rows import row_of
from bara_pyro.lm.inputs import positions

OnRows = Callable[[int], object]
Replied = Conversation | tuple[str | Sequence[Message], str]
"""A conversation, or a prompt (a text or messages) with its reply."""


def score_replies(
    reward: RewardModel,
    replies: Iterable[Replied],
    *,
    batch_size: int = 8,
    max_length: int | None = None,
    on_rows: OnRows | None = None,
) -> Tensor:
    """Return the scores of replies (float32, `n`) in order; higher is better.

    The score is the output of the model's forward pass; models made from a causal language model read it at
    the last token that is not padding. Apart from rounding it does not depend on batch or order.
    `rows.row_of` describes how prompt and reply are joined.

    Args:
        reward: a model from `load_reward_model`.
        replies: the n prompts with their replies.
        batch_size: rows per batch; rows of similar length are batched.
        max_length: most tokens of prompt and reply together, by default `reward.max_length`; longer rows lose
            the beginning of their prompt.
        on_rows: called after each batch with its number of rows.

    Raises:
        DataError: there are no rows, a row has no tokens, a reply alone exceeds `max_length`, or messages are
            given to a model without a chat template.
        ConfigError: `batch_size` or `max_length` is not positive, or the model cannot read that many tokens.
        BackboneError: a score is not finite.

    Examples:
        >>> from transformers import AutoModelForSequenceClassification, AutoTokenizer
        >>> from bara_pyro.extras.replies.reward import load_reward_model, score_replies
        >>> from bara_pyro.microworld import backbone_path
        >>> untrained = AutoModelForSequenceClassification.from_pretrained(backbone_path(), num_labels=1)
        >>> untrained.save_pretrained("judge")
        >>> _ = AutoTokenizer.from_pretrained(backbone_path()).save_pretrained("judge")
        >>> replies = [("in summer", " he keeps goats ."), ("in summer", " no .")]
        >>> score_replies(load_reward_model("judge"), replies).shape
        torch.Size([2])
    """
    conversations = [_conversation(reply, number) for number, reply in enumerate(replies, 1)]
    length = _checked_length(reward, max_length)
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}: choose 1 or more.")
    if not conversations:
        raise DataError("There are no replies to score: give at least one.")
    rows = [torch.tensor(_row(reward, conversation, length)) for conversation in conversations]
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    scores = torch.empty(len(rows))
    pad = reward.model.config.get_text_config().pad_token_id
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        with torch.inference_mode():
            # Padding is on the right, so that tokens keep their positions: a model may have learnt those.
            ids = pad_sequence([rows[place] for place in places], batch_first=True, padding_value=pad)
            mask = pad_sequence([torch.ones_like(rows[place]) for place in places], batch_first=True)
            output = reward.model(input_ids=ids.to(reward.device), attention_mask=mask.to(reward.device))
            scores[places] = output.logits[:, 0].float().cpu()
        if on_rows is not None:
            on_rows(len(places))
    if not torch.isfinite(scores).all():
        worst = conversations[int((~torch.isfinite(scores)).nonzero()[0])]
        raise BackboneError(
            f"The score of row {worst.id!r} is not finite: load the reward model in float32 or bfloat16."
        )
    return scores


def _conversation(reply: Replied, number: int) -> Conversation:
    if isinstance(reply, Conversation):
        return reply
    prompt, text = reply
    return Conversation(prompt if isinstance(prompt, str) else tuple(prompt), text, f"row-{number}")


def _checked_length(reward: RewardModel, max_length: int | None) -> int:
    length, most = max_length or reward.max_length, positions(reward.model)
    if max_length is not None and max_length < 1:
        raise ConfigError(f"max_length is {max_length}: choose a positive number of tokens.")
    if most is not None and length > most:
        raise ConfigError(
            f"max_length is {length}, but {reward.name} reads {most} tokens at most: give --max-length "
            f"{most} or fewer (max_length in Python)."
        )
    return length


def _row(reward: RewardModel, conversation: Conversation, max_length: int) -> list[int]:
    row = row_of(conversation, reward.tokenizer, max_length)
    if row is None:
        raise DataError(
            f"The reply of row {conversation.id!r} is longer than {max_length} tokens: raise max_length "
            "(--max-length), or leave the row out."
        )
    return row
