"""Chat messages as tokens: the prompt as the chat template writes it, and the reply or answer to learn."""

from collections.abc import Iterable, Sequence
from typing import Any

from bara_pyro.data.conversations import Conversation, Message, said_by_assistant, said_by_user
from bara_pyro.data.replies import EncodedReplies, EncodedReply
from bara_pyro.data.templates import Written, model_of, written
from bara_pyro.data.tokens import Tokenizer, continuation, front_ids, ids_of, pad_id
from bara_pyro.data.types import ChatFrame
from bara_pyro.errors import ConfigError, DataError

QUESTION, ANSWER = "what-is-asked", "what-is-answered"
"""Texts that `chat_frame` looks for in the output of a template."""


def chat_frame(tokenizer: Tokenizer, system: str | None = None) -> ChatFrame:
    """Return the text that a tokenizer's chat template writes around a question and its answer.

    The template writes a conversation of one question and its answer. What it writes in front of the answer
    is the prompt; it equals `apply_chat_template(..., add_generation_prompt=True)` except for spaces at its
    end and for templates that open the turn with thoughts, which an answer does not have.

    Args:
        tokenizer: the language model's tokenizer.
        system: text of the system message; None leaves it to the template.

    Raises:
        DataError: there is no chat template, or it refuses or omits the question or the system message.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.data import chat_frame
        >>> tokenizer = bp.load_backbone("microworld").tokenizer
        >>> tokenizer.chat_template = (
        ...     "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
        ...     "{% if add_generation_prompt %}[assistant]{% endif %}"
        ... )
        >>> chat_frame(tokenizer)
        ChatFrame(before='[user] ', after=' [assistant]', space=' ')
        >>> chat_frame(tokenizer, "Be brief.").before
        '[system] Be brief. [user] '
    """
    _check_template(tokenizer)
    question = said_by_user(QUESTION)
    opening: tuple[Message, ...] = () if system is None else ({"role": "system", "content": system},)
    reply = said_by_assistant(ANSWER)
    try:
        written_text = written((*opening, *question), tokenizer, "a question", reply=reply).whole
    except DataError as error:
        if system is None:
            raise
        # This raises if the system message is not the cause.
        written(question, tokenizer, "a question", reply=reply)
        raise DataError(
            f"The chat template of {model_of(tokenizer)} has no system message: leave out system (--system), "
            "or put its text into the rows."
        ) from error
    before_answer = written_text.rpartition(ANSWER)[0]
    before, _, after = before_answer.rpartition(QUESTION)
    opened = after.rstrip(" ")
    return ChatFrame(before, opened, after[len(opened) :])


def prompt_tokens(prompt: str | Sequence[Message], tokenizer: Tokenizer, what: str = "") -> list[int]:
    """Return the tokens of a prompt: of a text, or of messages up to the assistant's turn.

    `what` names the prompt in errors. If there is no template for messages, or it refuses them or omits their
    content, this raises a `DataError`.
    """
    if isinstance(prompt, str):
        return front_ids(tokenizer) + ids_of(tokenizer, [prompt])[0]
    _check_template(tokenizer)
    texts = written(prompt, tokenizer, what or f"the messages {str([*prompt])[:80]}")
    return ids_of(tokenizer, [texts.given])[0]


def _check_template(tokenizer: Tokenizer) -> None:
    if not tokenizer.chat_template:
        raise DataError(
            f"There is no chat template in {model_of(tokenizer)}: leave out chat=True (--chat), "
            "give texts instead of messages, without a column 'system', or choose a chat model."
        )


def answered(
    prompt: Sequence[Message], reply: Message, tokenizer: Tokenizer, what: str
) -> tuple[list[int], list[int]]:
    """Return the tokens of the messages up to the assistant's turn, and the tokens that the reply adds.

    Raises:
        DataError: see `prompt_tokens`; or the template does not write the reply last.
    """
    _check_template(tokenizer)
    texts = written(prompt, tokenizer, what, reply=reply)
    if not texts.whole.startswith(texts.given):
        raise DataError(
            f"The chat template does not write the reply of {what} after the opening of the assistant's "
            "turn: give prompt and completion as texts."
        )
    return ids_of(tokenizer, [texts.given])[0], _learnt(texts, tokenizer)


def _learnt(texts: Written, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a reply as the template writes it, up to the token that ends it.

    Text after that token is never generated. The reply itself may contain such tokens, so the end is the
    first one after the reply's last text.
    """
    reply = texts.whole[len(texts.given) :]
    tokens = continuation(tokenizer, texts.given, reply)
    closing = {tokenizer.eos_token_id, turn_end(tokenizer)} - {None}
    behind = ids_of(tokenizer, [texts.tail[-len(reply) :]])[0] if reply else []
    ends = [place for place, token in enumerate(tokens) if token in closing]
    if count := sum(token in closing for token in behind):
        return tokens[: ends[-count] + 1]
    bare = tokens
    while bare and not tokenizer.decode(bare[-1:]).strip():
        bare = bare[:-1]
    added = tokenizer.added_tokens_decoder
    if bare and bare[-1] in added and added[bare[-1]].special:  # a reply may end in a special token
        return bare
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return [*tokens, *end] if tokens else []  # the template closes no turn, and a reply would never stop


def turn_end(tokenizer: Any) -> int | None:
    """Return the token that ends an assistant's reply, or None if there is no template or no such token.

    It may differ from the tokenizer's end token: base models that share a template with their chat models
    end texts with one token and turns with another.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    question, reply = {"role": "user", "content": "asked"}, {"role": "assistant", "content": "said"}
    try:
        texts = written([question], tokenizer, "a question", reply=reply)
    except DataError:  # a template for images or tools only
        return None
    added = tokenizer.added_tokens_decoder
    tokens = tokenizer(texts.tail, add_special_tokens=False)["input_ids"]
    return next((token for token in tokens if token in added and added[token].special), None)


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
