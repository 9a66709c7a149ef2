"""Read prompts with replies in TRL's formats, and turn them into tokens by a chat template."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bara_pyro.data.chat import answered, prompt_tokens
from bara_pyro.data.messages import (
    PROMPTS,
    Message,
    after_system,
    asked_in,
    check_read,
    is_list,
    joined_turns,
    messages_of,
    no_reply,
    parted,
    said_by_assistant,
    said_by_user,
    texts_of,
)
from bara_pyro.data.replies import EncodedReplies, EncodedReply
from bara_pyro.data.rows import check_ids, column_in, own_id
from bara_pyro.data.tables import Data, DataTable, read_table
from bara_pyro.data.tokens import Tokenizer, check_unicode, continuation, pad_id
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.types import Fields

REPLIES = ("completion", "chosen", "response", "output", "answer")
"""Columns of replies."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Parts of an assistant's message; columns with these names are refused."""


@dataclass(frozen=True)
class Conversation:
    """A prompt and the reply to learn, as texts or as messages.

    Attributes:
        prompt: a text, or the messages before the reply, each with `role` and `content`.
        reply: a text, or the assistant's message if it has other parts, such as reasoning.
        id: a stable identifier.
    """

    prompt: str | tuple[Message, ...]
    reply: str | Message
    id: str

    def spoken(self) -> "Conversation":
        """Return a copy whose plain prompt has become a message of the user."""
        return replace(self, prompt=said_by_user(self.prompt))


def load_conversations(data: Data, split: str = "row") -> list[Conversation]:
    """Read the conversations of a file, DataFrame, `datasets.Dataset` or list of dictionaries.

    Rows have one of TRL's formats:

    - `messages`: a conversation whose last message is the assistant's reply;
    - `prompt` (a text or messages) with `completion`;
    - `prompt`, `chosen` and `rejected`: the chosen reply is learnt.

    The column `prompt` may also be called `instruction` or `question`, and `completion` may be `response`,
    `output` or `answer`. If the reply column holds messages, the last one is the reply and the others follow
    the prompt, which they may repeat. A column `input` beside an `instruction` (Alpaca's format) is put below
    it. A text in `system` or `system_prompt` becomes the system message.

    Args:
        data: the rows.
        split: prefix of the identifiers of rows without an id, `<split>-<row>`.

    Raises:
        DataError: the file cannot be read, a row has none of these formats or invalid Unicode, messages do
            not end with the assistant's or contradict the prompt, or two rows have the same id.

    Examples:
        >>> import bara_pyro as bp
        >>> [row] = bp.load_conversations([{"prompt": "Count on from 3 :", "completion": " 4 5"}])
        >>> row.prompt, row.reply, row.id
        ('Count on from 3 :', ' 4 5', 'row-1')
    """
    return conversations_in(read_table(data), split)


def conversations_in(table: DataTable, split: str) -> list[Conversation]:
    """Return the conversations of a table; see `load_conversations`."""
    conversations = []
    for number, row in enumerate(table.rows, 1):
        where = f"row {number} of {table.place}"
        one = _conversation(row, where, own_id(row) or f"{split}-{number}")
        check_unicode(texts_of([one.prompt, one.reply, one.id]), row, where)
        conversations.append(one)
    check_ids([row.id for row in conversations], table.place)
    return conversations


def _conversation(row: Fields, where: str, row_id: str) -> Conversation:
    if is_list(row.get("chosen")) and all(row.get(name) is None for name in PROMPTS):  # whole conversations
        row = {**row, "messages": row["chosen"]}
    if row.get("messages") is not None:
        before, reply = parted(messages_of(row["messages"], where, "messages"), where)
        if not before:
            raise no_reply(1, "assistant", where)
        return _whole(after_system(before, row, where), reply, row, row_id, where)
    column = column_in(row, REPLIES)
    prompt_column = column_in(row, (name for name in PROMPTS if name != column))
    if prompt_column is None or column is None:
        raise DataError(
            f"There is no reply to learn in {where}, which has {', '.join(map(str, row)) or 'no columns'}: "
            f"give 'messages', or 'prompt' with one of {', '.join(map(repr, REPLIES))}."
        )
    value, prompt_value = row[column], asked_in(row, prompt_column, where)
    if isinstance(value, str):
        return _whole(prompt_value, value, row, row_id, where)
    turns, reply = parted(messages_of(value, where, column), where)
    return _whole(
        joined_turns(said_by_user(prompt_value), turns, prompt_column, where), reply, row, row_id, where
    )


def _whole(
    prompt: str | tuple[Message, ...], reply: str | Message, row: Fields, row_id: str, where: str
) -> Conversation:
    """Return a conversation; refuse columns that would be lost."""
    check_read(row, where)
    known = set(texts_of(reply))
    for column in REASONING:
        if row.get(column) and row[column] not in known:
            raise DataError(
                f"{where} has a column {column!r}, which is not read: leave it out, or put it into the "
                "assistant's message."
            )
    return Conversation(prompt, reply, row_id)


def encode_replies(
    conversations: Iterable[Conversation],
    tokenizer: Tokenizer,
    max_length: int = 2048,
    *,
    chat: bool = False,
    too_long: str = "drop",
) -> EncodedReplies:
    """Return conversations as tokens, at most `max_length` each.

    Messages are written by the tokenizer's chat template; the reply is the part after the opening of the
    assistant's turn, up to the end-of-text token. Plain texts are used unchanged, and the reply gets the
    end-of-text token, if the tokenizer has one. The prompt is tokenised by itself, as in generation; the
    reply's tokens are those that prompt and reply together add.

    Args:
        conversations: prompts with replies, for example from `load_conversations`.
        tokenizer: a Hugging Face tokenizer.
        max_length: the most tokens of prompt and reply together; longer replies are cut at the end.
        chat: also turn plain prompts into messages of the user.
        too_long: what to do if the prompt alone reaches `max_length`: "drop" the row, or raise an "error".

    Returns:
        The rows as tokens, with the identifiers of cut and dropped rows; `batch` makes batches of them.

    Raises:
        ConfigError: `max_length` is below 2.
        DataError: a row is too long and `too_long` is "error", a prompt or reply has no tokens, or the
            tokenizer has no chat template for messages, or one that does not write the reply last.

    Examples:
        >>> import bara_pyro as bp
        >>> tokenizer = bp.load_backbone("microworld").tokenizer
        >>> rows = bp.load_conversations([{"prompt": "the guest lives in", "completion": " the marsh ."}])
        >>> replies = bp.encode_replies(rows, tokenizer, max_length=64)
        >>> [reply] = replies.rows[0]
        >>> tokenizer.decode(reply.prompt), tokenizer.decode(reply.reply)
        ('the guest lives in', 'the marsh . <end>')
    """
    if max_length < 2:
        raise ConfigError(f"max_length is {max_length}: choose 2 or more, for a prompt and a reply.")
    rows: list[EncodedReply] = []
    shortened, dropped = [], []
    for conversation in conversations:
        prompt, reply = tokens_of(conversation, tokenizer, chat=chat)
        room = max_length - len(prompt)
        if room < 1 and too_long == "error":
            raise DataError(
                f"The prompt of row {conversation.id!r} is {len(prompt)} tokens long, but max_length is "
                f"{max_length}: raise max_length, or drop such rows with too_long='drop' (--too-long drop)."
            )
        if room < 1:
            dropped.append(conversation.id)
            continue
        if len(reply) > room:
            shortened.append(conversation.id)
        rows.append(EncodedReply(tuple(prompt), tuple(reply[:room]), conversation.id))
    return EncodedReplies(tuple((row,) for row in rows), pad_id(tokenizer), tuple(shortened), tuple(dropped))


def tokens_of(
    conversation: Conversation, tokenizer: Tokenizer, *, chat: bool = False
) -> tuple[list[int], list[int]]:
    """Return the tokens of a prompt and of its reply; see `encode_replies`."""
    reply_value = conversation.reply
    prompt = said_by_user(conversation.prompt) if chat else conversation.prompt
    what = f"row {conversation.id!r}"
    if isinstance(prompt, str):
        if not isinstance(reply_value, str):
            raise DataError(
                f"The prompt of {what} is a text, but parts of a reply need messages: give these, or set "
                "chat=True (--chat)."
            )
        reply = continuation(tokenizer, prompt, reply_value) if reply_value else []
        end = [tokenizer.eos_token_id] if reply and tokenizer.eos_token_id is not None else []
        return prompt_tokens(prompt, tokenizer), reply + end
    return answered(prompt, said_by_assistant(reply_value), tokenizer, what)
