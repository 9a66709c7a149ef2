"""`bara_pyro.generate`: write replies with a run, with the options of `bara generate`."""

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
    """Write replies to prompts, each with one posterior draw for the whole reply, as `bara generate` does.

    Args:
        run: a system from `train` or `load_system`, or the folder of a run.
        prompts: a list of texts, or rows that `bara_pyro.extras.replies.generation.load_prompts` reads: a
            file, a DataFrame, or a list of dictionaries with `prompt` or `messages`.
        replies: number of replies per prompt.
        uncertainty: number of draws that estimate each token's uncertainty; 0 for no uncertainty.
        chat: whether to put plain texts through the chat template; by default as in training.
        memory_budget: bytes per batch; see `bara_pyro.extras.replies.generation.generate`.
        decoding: `temperature`, `top_p`, `top_k`, `max_new_tokens`, `stop`, `seed`, `draws`, `fresh_theta`
            and `mixture`; see `bara_pyro.extras.replies.generation.generate`, which also yields replies as
            they are ready and takes further arguments of transformers.

    Returns:
        One dictionary per reply: `id` of the prompt, `number`, `reply` and `log_prob` (nats, under the
        reply's own draw). With `uncertainty` also `total`, `aleatoric` and `epistemic`, lists with one number
        (nats) per token. `bara_pyro.extras.replies.generation.file.reply_lines` lists all keys.

    Raises:
        ConfigError: an argument is unknown or out of range; see
            `bara_pyro.extras.replies.generation.generate`.
        DataError: a prompt cannot be read, or has no tokens.

    Examples:
        >>> import bara_pyro as bp
        >>> chat = bp.load_replies("micro-chat")
        >>> run = bp.train(task=chat, method="bara-gate", steps=2, out="runs/chat")
        >>> prompts = ["tell three things about hanil in spring . reply :"]
        >>> written = bp.generate(run, prompts, replies=2, uncertainty=3, max_new_tokens=4, stop=".")
        >>> [(reply["id"], reply["number"]) for reply in written]
        [('0', 0), ('0', 1)]
        >>> len(written[0]["epistemic"]) == written[0]["tokens"]  # one number (nats) per token
        True
    """
    known = [field.name for field in fields(Decoding)]
    if others := sorted(set(decoding) - set(known)):
        raise ConfigError(unknown("argument of generate", others[0], known))
    run, how = fitted(run), Decoding(**decoding)
    ids: list[str] = []
    if isinstance(prompts, list) and all(isinstance(one, str) for one in prompts):
        texts: list[PromptLike] = [*prompts]
    else:
        ids, texts = load_prompts(prompts)
    chat = run.config.task.chat if chat is None else chat
    encoded = encode_prompts(texts, run.backbone.tokenizer, chat=chat, ids=ids)
    pairs = list(zip(encoded, texts, strict=True))
    lines = reply_lines(
        run, pairs, how, replies=replies, uncertainty=uncertainty, memory_budget=memory_budget
    )
    return list(lines)
