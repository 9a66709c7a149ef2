"""The token with which a chat template closes what the assistant says."""

from typing import Any

from bara_pyro.data.templates import written
from bara_pyro.errors import DataError

SAID = "said"


def turn_end(tokenizer: Any) -> int | None:
    """Return the token behind an assistant's reply; None where there is no template, or it writes none there.

    It need not be the tokenizer's own end token: base models that share a template with their chat models end
    texts with one token and turns with another.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.data.turns import turn_end
        >>> turn_end(bp.load_backbone("microworld").tokenizer) is None  # it has no chat template
        True
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    asked, reply = {"role": "user", "content": "asked"}, {"role": "assistant", "content": SAID}
    try:
        found = written([asked], tokenizer, "a question", reply=reply)
    except DataError:  # a template of its own kind, for images or tools alone
        return None
    behind = found.whole.rpartition(SAID)[2]
    added = tokenizer.added_tokens_decoder
    tokens = tokenizer(behind, add_special_tokens=False)["input_ids"]
    return next((token for token in tokens if token in added and added[token].special), None)
