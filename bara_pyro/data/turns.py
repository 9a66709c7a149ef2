"""Find the token with which a chat template ends the assistant's turn."""

from typing import Any

from bara_pyro.data.templates import written
from bara_pyro.errors import DataError

SAID = "said"


def turn_end(tokenizer: Any) -> int | None:
    """Return the token that ends an assistant's reply, or None if there is no template or no such token.

    It may differ from the tokenizer's end token: base models that share a template with their chat models
    end texts with one token and turns with another.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.data.turns import turn_end
        >>> turn_end(bp.load_backbone("microworld").tokenizer) is None  # it has no chat template
        True
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    question, reply = {"role": "user", "content": "asked"}, {"role": "assistant", "content": SAID}
    try:
        texts = written([question], tokenizer, "a question", reply=reply)
    except DataError:  # a template for images or tools only
        return None
    behind = texts.whole.rpartition(SAID)[2]
    added = tokenizer.added_tokens_decoder
    tokens = tokenizer(behind, add_special_tokens=False)["input_ids"]
    return next((token for token in tokens if token in added and added[token].special), None)
