"""Read prompts and turn them into tokens: texts unchanged, conversations by the chat template."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bara_pyro.data.chat import prompt_tokens
from bara_pyro.data.conversations import PROMPTS, Message, asked_in, check_read, said_by_user, texts_of
from bara_pyro.data.rows import check_ids, column_in, own_id
from bara_pyro.data.tables import Data, read_table
from bara_pyro.data.tokens import Tokenizer, check_unicode
from bara_pyro.errors import DataError
from bara_pyro.types import Fields

PromptLike = str | Sequence[Message]
"""A text to continue, or the messages of a conversation that ends with the user's."""


@dataclass(frozen=True)
class Prompt:
    """An encoded prompt.

    Attributes:
        token_ids: its tokens.
        id: identifier that its replies are stored under.
        goes_on: whether replies continue its text, possibly with a leading space, instead of being messages.
    """

    token_ids: tuple[int, ...]
    id: str
    goes_on: bool = False

    @cached_property
    def key(self) -> str:
        """A hash of its tokens, which identifies it for the noise."""
        return hashlib.blake2b(repr(self.token_ids).encode(), digest_size=8).hexdigest()


def encode_prompts(
    prompts: Iterable[PromptLike], tokenizer: Tokenizer, *, chat: bool = False, ids: Sequence[str] = ()
) -> list[Prompt]:
    """Return prompts as tokens.

    Args:
        prompts: texts, which are encoded unchanged, or messages, which go through the chat template.
        tokenizer: the language model's tokenizer.
        chat: whether to treat texts as a user's messages.
        ids: identifiers of the prompts; "0", "1", ... by default.

    Raises:
        DataError: a prompt has no tokens or is not valid Unicode, two share an id, or the chat template is
            missing or drops part of the messages.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.extras.replies.generation import encode_prompts
        >>> tokenizer = bp.load_backbone("microworld").tokenizer
        >>> [prompt] = encode_prompts(["the guest lives in"], tokenizer)
        >>> prompt.id, tokenizer.convert_ids_to_tokens(prompt.token_ids)
        ('0', ['the', 'guest', 'lives', 'in'])
    """
    encoded: list[Prompt] = []
    for number, prompt in enumerate(prompts):
        name = ids[number] if ids else str(number)
        if isinstance(prompt, Mapping):
            raise DataError(
                f"The prompt with the id {name!r} is one message, {str(prompt)[:60]}: give each conversation "
                "as a list of messages, [[...], ...]."
            )
        content = said_by_user(prompt) if chat else prompt
        tokens = prompt_tokens(content, tokenizer, f"the prompt {name!r}")
        if not tokens:
            raise DataError(f"The prompt with the id {name!r} has no tokens: leave it out.")
        encoded.append(Prompt(tuple(tokens), name, isinstance(content, str)))
    check_ids([prompt.id for prompt in encoded], "The prompts")
    return encoded


def load_prompts(data: Data) -> tuple[list[str], list[PromptLike]]:
    """Return identifiers and prompts of rows with `messages`, `prompt`, `instruction` or `question`.

    A reply at the end of `messages` is left out. `input` is appended to its `instruction`.

    Raises:
        DataError: the file cannot be read, a row has no prompt or is not valid Unicode, or ids repeat.

    Examples:
        >>> from bara_pyro.extras.replies.generation import load_prompts
        >>> load_prompts([{"id": "a", "prompt": "Count to 3 ."}, {"question": "What is 1 and 2 ?"}])
        (['a', 'row-2'], ['Count to 3 .', 'What is 1 and 2 ?'])
    """
    table = read_table(data)
    ids = [own_id(row) or f"row-{n}" for n, row in enumerate(table.rows, 1)]
    check_ids(ids, table.place)
    prompts: list[PromptLike] = []
    for number, (row_id, row) in enumerate(zip(ids, table.rows, strict=True), 1):
        where = f"row {number} of {table.place}"
        prompt = _prompt(row, where)
        check_read(row, where)
        check_unicode(texts_of([row_id, prompt]), row, where)
        prompts.append(prompt)
    return ids, prompts


def _prompt(row: Fields, where: str) -> str | tuple[Message, ...]:
    column = column_in(row, ("messages", *PROMPTS))
    if column is None:
        raise DataError(
            f"There is no prompt in {where}, which has {', '.join(map(str, row)) or 'no columns'}: give "
            f"'messages' or one of {', '.join(map(repr, PROMPTS))}."
        )
    prompt = asked_in(row, column, where)
    if isinstance(prompt, str):
        return prompt
    answered = len(prompt) > 1 and prompt[-1]["role"] == "assistant"
    return prompt[:-1] if answered else prompt
