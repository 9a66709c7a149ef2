"""Replies of a run in Python, in the words of the command line: `bara_pyro.generate`."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from bara_pyro.data.tables import Data
from bara_pyro.errors import ConfigError, unknown
from bara_pyro.extras.replies.generation.decoding import Decoding
from bara_pyro.extras.replies.generation.file import reply_lines
from bara_pyro.extras.replies.generation.prompts import PromptLike, encode_prompts, load_prompts
from bara_pyro.runs.folder import fitted
from bara_pyro.runs.system import System
from bara_pyro.types import Json


def generate(
    run: System | str | Path,
    prompts: Data,
    *,
    replies: int = 1,
    uncertainty: int = 0,
    chat: bool | None = None,
    memory_budget: int | None = None,
    **decoding: Any,
) -> list[Json]:
    """Reply to prompts, each reply under one draw of the posterior that holds for all of it; `bara generate`.

    Args:
        run: what `train` or `load_system` gave, or its folder.
        prompts: a list of texts, or rows as `bara_pyro.extras.replies.generation.load_prompts` reads them: a
            file, a DataFrame, a list of dictionaries with `prompt` or `messages`.
        replies: number of replies a prompt.
        uncertainty: number of draws that say how sure the posterior is of each token; 0: none.
        chat: whether texts, too, go through the chat template; as the run was trained by default.
        memory_budget: bytes that a batch may take; see `bara_pyro.extras.replies.generation.generate`.
        decoding: `temperature`, `top_p`, `top_k`, `max_new_tokens`, `stop`, `seed`, `draws`, `fresh_theta`,
            `mixture`: see `bara_pyro.extras.replies.generation.generate`, which yields replies as they are
            ready, and takes further arguments of transformers.

    Returns:
        One dictionary a reply: `id` of the prompt, `number`, `reply`, `log_prob` in nats under its own draw,
        and by token, where that was asked for, `total`, `aleatoric` and `epistemic` in nats; all of it:
        `bara_pyro.extras.replies.generation.file.reply_lines`.

    Raises:
        ConfigError: an argument is unknown or out of range; see
            `bara_pyro.extras.replies.generation.generate`.
        DataError: a prompt cannot be read, or has no tokens.

    Examples:
        >>> import bara_pyro as bp
        >>> chat = bp.load_replies("micro-chat")
        >>> run = bp.train(task=chat, method="bara-gate", steps=2, out="runs/chat")
        >>> prompts = ["tell three things about hanil in spring . reply :"]
        >>> found = bp.generate(run, prompts, replies=2, uncertainty=3, max_new_tokens=4, stop=".")
        >>> [(reply["id"], reply["number"]) for reply in found]
        [('0', 0), ('0', 1)]
        >>> len(found[0]["epistemic"]) == found[0]["tokens"]  # nats, of each token
        True
    """
    known = [field.name for field in fields(Decoding)]
    if others := sorted(set(decoding) - set(known)):
        raise ConfigError(unknown("argument of generate", others[0], known))
    run, how = fitted(run), Decoding(**decoding)
    ids: list[str] = []
    if isinstance(prompts, list) and all(isinstance(one, str) for one in prompts):
        asked: list[PromptLike] = [*prompts]
    else:
        ids, asked = load_prompts(prompts)
    chat = run.config.task.chat if chat is None else chat
    encoded = encode_prompts(asked, run.backbone.tokenizer, chat=chat, ids=ids)
    told = list(zip(encoded, asked, strict=True))
    lines = reply_lines(run, told, how, replies=replies, uncertainty=uncertainty, memory_budget=memory_budget)
    return list(lines)
