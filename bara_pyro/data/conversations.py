"""Prompts with replies as people keep them: TRL's formats, preference pairs; to tokens by a chat template."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from jinja2 import TemplateError

from bara_pyro.data.messages import (
    PROMPTS,
    Message,
    after_system,
    asked_in,
    is_list,
    joined,
    messages_of,
    no_reply,
    parted,
    said_by_user,
    texts_of,
)
from bara_pyro.data.replies import EncodedReplies, EncodedReply
from bara_pyro.data.rows import check_ids, column_in, own_id
from bara_pyro.data.tables import Data, Table, read_table
from bara_pyro.data.tokens import Tokenizer, continuation, front_ids, ids_of, pad_id
from bara_pyro.data.turns import turn_end
from bara_pyro.data.unicode import check_unicode
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.types import Fields

REPLIES = ("completion", "chosen", "response", "output", "answer")
"""Columns that replies are found in."""


@dataclass(frozen=True)
class Conversation:
    """What is given and what is to be learnt: texts, or messages of a conversation.

    Attributes:
        prompt: a text, or the messages before the reply, each with `role` and `content`.
        reply: its text.
        id: a stable identifier.
    """

    prompt: str | tuple[Message, ...]
    reply: str
    id: str

    def spoken(self) -> "Conversation":
        """Return the same with a plain prompt read as what a user says in a conversation."""
        return replace(self, prompt=said_by_user(self.prompt))


def load_conversations(data: Data, split: str = "row") -> list[Conversation]:
    """Return the conversations of a file, DataFrame, `datasets.Dataset` or list of dictionaries.

    Rows are in one of the formats of TRL: `messages`, a conversation whose last message is the assistant's;
    `prompt` (a text or messages) with `completion`; or a preference pair, whose `chosen` reply is learnt. In
    place of `prompt` a column `instruction` or `question` will do, and in place of `completion` one named
    `response`, `output` or `answer`; where it holds messages, the last one, the assistant's, is the reply,
    and those before it follow the prompt, which they may begin with once more. What a column `input` holds
    beside an `instruction` (Alpaca's format) is put below it, and a text in `system` or `system_prompt` is
    the system's message before the prompt.

    Args:
        data: the rows.
        split: begins the identifiers of rows that have none of their own, `<split>-<row>`.

    Raises:
        DataError: a file that cannot be read, a row in none of these formats or that is not valid Unicode,
            messages that do not end with the assistant's or that begin with another prompt, or two rows with
            one id.

    Examples:
        >>> import bara_pyro as bp
        >>> [row] = bp.load_conversations([{"prompt": "Count on from 3 :", "completion": " 4 5"}])
        >>> row.prompt, row.reply, row.id
        ('Count on from 3 :', ' 4 5', 'row-1')
    """
    return conversations_in(read_table(data), split)


def conversations_in(table: Table, split: str) -> list[Conversation]:
    """Return the conversations of a table; see `load_conversations`."""
    found = list(each_conversation(table.rows, table.place, split))
    check_ids([row.id for row in found], table.place)
    return found


def each_conversation(rows: Iterable[Fields], place: str, split: str) -> Iterator[Conversation]:
    """Yield the conversations of rows from `place` one at a time, of which two may have the same id."""
    for number, row in enumerate(rows, 1):
        where = f"row {number} of {place}"
        found = _conversation(row, where, own_id(row) or f"{split}-{number}")
        check_unicode([*texts_of(found.prompt), found.reply, found.id], row, where)
        yield found


def _conversation(row: Fields, where: str, row_id: str) -> Conversation:
    if is_list(row.get("chosen")) and all(row.get(name) is None for name in PROMPTS):  # whole conversations
        row = {**row, "messages": row["chosen"]}
    if row.get("messages") is not None:
        before, reply = parted(messages_of(row["messages"], where, "messages"), where)
        if not before:
            raise no_reply(1, "assistant", where)
        return Conversation(after_system(before, row, where), reply, row_id)
    column = column_in(row, REPLIES)
    asked = column_in(row, (name for name in PROMPTS if name != column))
    if asked is None or column is None:
        raise DataError(
            f"There is no reply to learn in {where}, which has {', '.join(map(str, row)) or 'no columns'}: "
            f"give 'messages', or 'prompt' with one of {', '.join(map(repr, REPLIES))}."
        )
    found, given = row[column], asked_in(row, asked, where)
    if isinstance(found, str):
        return Conversation(given, found, row_id)
    turns, reply = parted(messages_of(found, where, column), where)
    return Conversation(joined(said_by_user(given), turns, asked, where), reply, row_id)


def encode_replies(
    conversations: Iterable[Conversation],
    tokenizer: Tokenizer,
    max_length: int = 2048,
    *,
    chat: bool = False,
    too_long: str = "drop",
) -> EncodedReplies:
    """Return conversations as tokens, of at most `max_length` each.

    Messages go through the tokenizer's chat template, and the reply is what it writes behind the opening of
    the assistant's turn, up to the token that ends a text. A plain prompt is read as it is, and its reply
    ends with that token, where the tokenizer has one. A prompt is tokenised by itself, as it is
    where a reply is generated, and a reply is what the two together add.

    Args:
        conversations: to encode.
        tokenizer: a Hugging Face tokenizer.
        max_length: the most tokens of prompt and reply together; what is longer loses the end of its reply.
        chat: read plain prompts, too, as what a user says in a conversation.
        too_long: "drop" leaves out rows whose prompt alone is as long as that, "error" refuses them.

    Raises:
        ConfigError: `max_length` is below 2.
        DataError: a row is refused for its length, a reply or a prompt has no tokens, or messages are given
            and the tokenizer has no chat template, or one that a reply does not come last in.

    Examples:
        >>> import bara_pyro as bp
        >>> tokenizer = bp.load_backbone("microworld").tokenizer
        >>> rows = bp.load_conversations([{"prompt": "the guest lives in", "completion": " the marsh ."}])
        >>> replies = bp.encode_replies(rows, tokenizer, max_length=64)
        >>> [reply] = replies.rows[0]
        >>> tokenizer.decode(reply.prompt), tokenizer.decode(reply.reply)
        ('the guest lives in', 'the marsh . <end>')
    """
    encoder = ReplyEncoder(tokenizer, max_length, chat, too_long)
    rows: list[EncodedReply] = []
    shortened, dropped = [], []
    for conversation in conversations:
        row, cut = encoder(conversation)
        if row is None:
            dropped.append(conversation.id)
            continue
        if cut:
            shortened.append(conversation.id)
        rows.append(row)
    return EncodedReplies(tuple((row,) for row in rows), pad_id(tokenizer), tuple(shortened), tuple(dropped))


@dataclass(frozen=True)
class ReplyEncoder:
    """What makes tokens of one conversation; attributes as the arguments of `encode_replies`."""

    tokenizer: Tokenizer
    max_length: int = 2048
    chat: bool = False
    too_long: str = "drop"

    def __post_init__(self) -> None:
        if self.max_length < 2:
            raise ConfigError(
                f"max_length is {self.max_length}: a prompt and a reply take at least 2 tokens."
            )

    def __call__(self, conversation: Conversation) -> tuple[EncodedReply | None, bool]:
        """Return a row, or None where its prompt is too long, and whether its reply was cut."""
        if self.chat:
            conversation = replace(conversation, prompt=in_chat(conversation.prompt, self.tokenizer))
        prompt, reply = tokens_of(conversation, self.tokenizer)
        room = self.max_length - len(prompt)
        if room < 1 and self.too_long == "error":
            raise DataError(
                f"The prompt of row {conversation.id!r} is {len(prompt)} tokens long and max_length is "
                f"{self.max_length}: raise max_length, or leave such rows out with too_long='drop' "
                "(--too-long drop)."
            )
        if room < 1:
            return None, False
        return EncodedReply(tuple(prompt), tuple(reply[:room]), conversation.id), len(reply) > room


def tokens_of(conversation: Conversation, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens of a prompt, and those of its reply; see `encode_replies`."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    prompt = conversation.prompt
    if isinstance(prompt, str):
        reply = continuation(tokenizer, prompt, conversation.reply) if conversation.reply else []
        return prompt_tokens(prompt, tokenizer), reply + (end if reply else [])
    tokens = continuation(tokenizer, *_written(prompt, conversation, tokenizer))
    closing = {*end, turn_end(tokenizer)}
    ends = [place for place, token in enumerate(tokens) if token in closing]
    if not ends and tokens:  # a template that closes no turn: without an end a reply would never stop
        return prompt_tokens(prompt, tokenizer), tokens + end
    # What a template writes behind the first end is never generated; a reply may speak of such tokens itself.
    inside = sum(token in closing for token in ids_of(tokenizer, [conversation.reply])[0])
    cut = ends[min(inside, len(ends) - 1)] + 1 if ends else None
    return prompt_tokens(prompt, tokenizer), tokens[:cut]


def prompt_tokens(prompt: str | Sequence[Message], tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of what a reply follows: of a text, or of messages up to the assistant's turn.

    Raises:
        DataError: messages are given, and the tokenizer has no chat template.
    """
    if isinstance(prompt, str):
        return front_ids(tokenizer) + ids_of(tokenizer, [prompt])[0]
    return ids_of(tokenizer, [_opened(prompt, tokenizer)])[0]


def in_chat(prompt: str | Sequence[Message], tokenizer: Tokenizer) -> tuple[Message, ...]:
    """Return a prompt as messages, a plain one as what a user says, because chat=True (--chat) asks for that.

    Raises:
        DataError: it is plain, and the tokenizer has no chat template.
    """
    if isinstance(prompt, str) and not tokenizer.chat_template:
        raise DataError(
            f"{_model_of(tokenizer)} has no chat template: leave out chat=True (--chat), or give a model "
            "made for conversations."
        )
    return said_by_user(prompt)


def _model_of(tokenizer: Tokenizer) -> str:
    return tokenizer.name_or_path or "The tokenizer"


def _opened(prompt: Sequence[Message], tokenizer: Tokenizer) -> str:
    if not tokenizer.chat_template:
        raise DataError(
            f"{_model_of(tokenizer)} has no chat template, which messages need: give texts in their place, "
            "without a column 'system', or a model made for conversations."
        )
    what = f"the messages {str([*prompt])[:80]}"
    return by_template([*prompt], tokenizer, what, add_generation_prompt=True)


def by_template(messages: list[Message], tokenizer: Tokenizer, what: str, **how: bool) -> str:
    """Return what a chat template writes of messages; a `DataError` that says of `what` where it refuses."""
    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **how)
    except TemplateError as error:
        raise DataError(
            f"The chat template refuses {what} ({str(error).rstrip('.')}): change its messages."
        ) from error
    return text


def _written(prompt: Sequence[Message], conversation: Conversation, tokenizer: Tokenizer) -> tuple[str, str]:
    """Return what opens the assistant's turn, and what a chat template writes of a reply behind it."""
    said = {"role": "assistant", "content": conversation.reply}
    given = _opened(prompt, tokenizer)
    whole = by_template([*prompt, said], tokenizer, f"row {conversation.id!r}")
    if not whole.startswith(given):
        raise DataError(
            f"The chat template does not put the reply of row {conversation.id!r} behind what opens the "
            "assistant's turn: give prompt and completion as texts."
        )
    return given, whole[len(given) :]
