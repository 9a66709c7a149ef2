"""Write and read replies as lines of JSON, with their settings and each token's uncertainty."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from bara_pyro.atomic import check_there, jsonl_line, write_jsonl, writing
from bara_pyro.data.replies import EncodedReply
from bara_pyro.errors import ConfigError
from bara_pyro.extras.replies.generation.decoding import Decoding
from bara_pyro.extras.replies.generation.generate import Reply, generate
from bara_pyro.extras.replies.generation.prompts import Prompt, PromptLike
from bara_pyro.extras.replies.generation.uncertainty import BUDGET, ReplyUncertainty, reply_uncertainty
from bara_pyro.lm.verifying import fingerprint_of
from bara_pyro.runs.system import System
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_jsonl
from bara_pyro.untrusted.schemas import ReplyLine

# Separates the draws that estimate uncertainty from those that write replies.
JUDGES = 2**32
TOGETHER = 16  # replies per batch of uncertainty estimates


def reply_lines(
    system: System,
    prompts: Sequence[tuple[Prompt, PromptLike]],
    how: Decoding,
    *,
    replies: int = 1,
    uncertainty: int = 0,
    skip: Collection[tuple[str, int]] = (),
    memory_budget: int | None = None,
) -> Iterator[Json]:
    """Yield a dictionary per reply as soon as it is ready.

    Keys: `id`, `prompt` and `prompt_key` (a hash of the tokens) of the prompt; `number`, `reply`, `ended`,
    `tokens` (their number) and `log_prob` (nats, under the reply's own draw); and `made`, a hash of the run
    and its settings. With `uncertainty` also one entry per token in `token_texts`, `log_probs`, `total`,
    `aleatoric` and `epistemic`, under separate draws (see `ReplyUncertainty`), and `log_prob_mixture`.

    Args:
        system: a fitted system.
        prompts: pairs of an encoded prompt and the original prompt.
        how: decoding settings.
        replies: number of replies per prompt.
        uncertainty: number of draws that estimate each token's uncertainty; 0 for none.
        skip: (prompt identifier, reply number) pairs that exist already.
        memory_budget: bytes per batch; see `generate` and `reply_uncertainty`.

    Raises:
        ConfigError: see `generate` and `reply_uncertainty`.
    """
    encoded = {prompt.id: prompt for prompt, _ in prompts}
    columns = {prompt.id: _columns(original) for prompt, original in prompts}
    new = generate(
        system.model,
        system.guide,
        list(encoded.values()),
        replies=replies,
        skip=skip,
        memory_budget=memory_budget,
        **asdict(how),
    )
    made = made_by(system, how, uncertainty)
    while some := list(islice(new, TOGETHER)):
        judged: Sequence[ReplyUncertainty | None] = [None] * len(some)
        if uncertainty:
            rows = [_encoded(encoded[reply.prompt], reply) for reply in some]
            judged = reply_uncertainty(
                system.model,
                system.guide,
                rows,
                samples=uncertainty,
                seed=how.seed + JUDGES,
                memory_budget=memory_budget or BUDGET,
            )
        for reply, by_token in zip(some, judged, strict=True):
            yield {
                "id": reply.prompt,
                "number": reply.number,
                **columns[reply.prompt],
                "prompt_key": encoded[reply.prompt].key,
                "reply": reply.text,
                "ended": reply.ended,
                "tokens": len(reply.token_ids),
                "log_prob": sum(reply.log_probs),
                "made": made,
                **({} if by_token is None else _by_token(system, reply, by_token)),
            }


def lines_there(output: Path, made: str, prompts: Sequence[tuple[Prompt, PromptLike]]) -> list[Json]:
    """Return the complete lines of a file of replies, to continue it.

    A missing file counts as empty. `made` is the hash of `made_by`, and the prompts are the current ones,
    encoded and original.

    Raises:
        ConfigError: the replies come from another run or other settings, or a prompt with the same identifier
            has other tokens.
        CheckpointError: the file cannot be read.
    """
    there = read_jsonl(output, ReplyLine)
    if others := sorted({str(row.get("made")) for row in there} - {made}):
        raise ConfigError(
            f"{output} was written by another run or with other settings ({', '.join(others)}, not {made}): "
            "give --overwrite or another --output."
        )
    current = {prompt.id: (prompt.key, original) for prompt, original in prompts}
    for row in there:
        key, original = current.get(row["id"], (row.get("prompt_key"), None))
        if row.get("prompt_key") != key:
            same = original is not None and row.get("prompt") == _columns(original)["prompt"]
            what = "this prompt with other tokens" if same else "another prompt"
            raise ConfigError(
                f"{output} contains a reply to {what} under the id {row['id']!r}: use the same prompts, chat "
                "setting and tokenizer, or give --overwrite."
            )
    return there


def append_lines(
    output: Path, there: Sequence[Json], lines: Iterable[Json], on_line: Callable[[], object] | None = None
) -> int:
    """Append lines to a file as soon as they are ready, and return its number of lines.

    If it cannot be written, or is removed in the meantime, this raises a `CheckpointError`.
    """
    left, say = iter(lines), on_line or (lambda: None)
    # The file is created with its first line: an empty file would not be recognised later. A partial last
    # line is dropped.
    first = [] if there else list(islice(left, 1))
    write_jsonl(output, [*there, *first])
    for _ in first:
        say()
    count = len(there) + len(first)
    with writing(output), output.open("a", encoding="utf-8", errors="backslashreplace") as file:
        for line in left:
            file.write(jsonl_line(line))
            file.flush()
            count += 1
            say()
        check_there(file, output)
    return count


def made_by(system: System, how: Decoding, uncertainty: int) -> str:
    """Return a hash (12 hexadecimal digits) of a run and the settings of its replies."""
    # Include the weights: the same settings give another run if its rows have changed.
    parts = enumerate((system.model, system.guide))
    learnt = {f"{i}/{name}": value for i, part in parts for name, value in part.named_parameters()}
    facts = {"run": system.config.hash, "weights": fingerprint_of(learnt), "uncertainty": uncertainty}
    facts |= asdict(how)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def _columns(prompt: PromptLike) -> Json:
    """Return a prompt as columns that `load_prompts` reads."""
    return {"prompt": prompt if isinstance(prompt, str) else [*prompt]}


def _encoded(prompt: Prompt, reply: Reply) -> EncodedReply:
    return EncodedReply(prompt.token_ids, reply.token_ids, prompt.key)


def _by_token(system: System, reply: Reply, uncertainty: ReplyUncertainty) -> Json:
    return {
        "token_texts": [system.backbone.tokenizer.decode([token]) for token in reply.token_ids],
        "log_probs": list(uncertainty.log_probs),
        "total": list(uncertainty.total),
        "aleatoric": list(uncertainty.aleatoric),
        "epistemic": list(uncertainty.epistemic),
        "log_prob_mixture": uncertainty.log_prob,
    }
