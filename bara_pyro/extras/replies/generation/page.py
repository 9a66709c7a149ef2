"""Write replies as a web page with every token coloured by its uncertainty."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from markupsafe import Markup

from bara_pyro.atomic import write_text
from bara_pyro.data.conversations import shown_message
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.generation.reply_tokens import Marked, mark_tokens
from bara_pyro.report.html import document, template_environment
from bara_pyro.report.style import COLOURS, letters, shade
from bara_pyro.runs.answers import REPLY_PAGE
from bara_pyro.types import Fields, Json

PACKAGE = "bara_pyro.extras.replies.generation"
NEEDED = (
    *("id", "number", "prompt", "reply", "ended", "log_prob", "log_prob_mixture", "token_texts"),
    *("log_probs", "total", "aleatoric", "epistemic"),
)
TOKENS = 500  # most tokens of a reply that are shown
LEVELS = 9
CAP = 0.98  # quantile of the values that has the strongest colour
# The first is the page's background, for tokens without uncertainty.
DAY, NIGHT = COLOURS[::-1], ("#11161d", *COLOURS)


@dataclass(frozen=True)
class Colouring:
    """A quantity that colours can show.

    Attributes:
        letter: prefix of its CSS classes.
        key: its key in the rows.
        name: its name on the page.
        cap: value in nats from which a token has the strongest colour; 0: all tokens have the value 0.
    """

    letter: str
    key: str
    name: str
    cap: float = 0.0

    def level(self, value: float | None) -> str:
        """Return the number of a value's colour, or "x" for None."""
        if value is None:
            return "x"
        if not self.cap:
            return "0"
        return str(max(0, min(LEVELS - 1, int((LEVELS - 1) * value / self.cap))))

    def values(self, row: Fields) -> list[float | None]:
        """Return the value of each token of a reply; None if the file has no finite number."""
        sign = -1.0 if self.key == "log_probs" else 1.0
        return [None if (number := _finite(value)) is None else sign * number for value in row[self.key]]


VIEWS = (
    Colouring("e", "epistemic", "epistemic"),
    Colouring("a", "aleatoric", "aleatoric"),
    Colouring("t", "total", "total"),
    Colouring("p", "log_probs", "−log p"),
)


def write_reply_page(
    rows: Iterable[Fields],
    out: Path | str,
    title: str,
    *,
    draws: int | None = None,
    prompts: int = 20,
    replies: int = 8,
) -> Path:
    """Write replies as a self-contained HTML file with one section per prompt.

    Tokens are coloured by their epistemic uncertainty; aleatoric, total and -log p can be chosen. Each of the
    four has one scale for the whole page, whose strongest colour begins at the 98 % quantile of the values.

    Args:
        rows: the lines that `bara generate --uncertainty` writes, as mappings.
        out: the file.
        title: title of the page.
        draws: number of draws that estimated the uncertainty, to state on the page; None: not stated.
        prompts: most prompts to show; the page states what it leaves out.
        replies: most replies per prompt to show, each with its first 500 tokens.

    Returns:
        The path of the file.

    Raises:
        ConfigError: a number is less than 1.
        DataError: there are no rows, or a row lacks the fields that `--uncertainty` adds.
        CheckpointError: the file cannot be written.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.extras.replies.generation.page import write_reply_page
        >>> run = bp.train(task=bp.load_replies("micro-chat"), method="bara-gate", steps=2, out="runs/chat")
        >>> rows = bp.generate(run, ["the guest lives in"], uncertainty=3, max_new_tokens=4)
        >>> write_reply_page(rows, "replies.html", "Replies of a run", draws=3)
        PosixPath('replies.html')
    """
    for name, value in (("draws", draws), ("prompts", prompts), ("replies", replies)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}: give 1 or more.")
    by_prompt = _by_prompt(rows)
    shown = [part[:replies] for part in islice(by_prompt.values(), prompts)]
    views = [_capped(view, [row for part in shown for row in part]) for view in VIEWS]
    content = template_environment(PACKAGE).get_template("replies.html").render(
        mark=Markup(REPLY_PAGE),  # noqa: S704 (ours)
        views=views,
        levels=range(LEVELS),
        draws=draws,
        most=math.log(draws) if draws else None,
        cap=f"{100 * CAP:g}",
        left_out=_left_out(by_prompt, prompts, replies),
        prompts=[_section(part, views) for part in shown],
    )  # fmt: skip
    style = template_environment(PACKAGE).get_template("replies.css").render(
        views=views,
        themes=[("", _theme(DAY)), ("@media screen and (prefers-color-scheme: dark)", _theme(NIGHT))],
    )  # fmt: skip
    page = document(title, body=Markup(content), style=style)  # noqa: S704 (escaped by the template)
    write_text(Path(out), page)
    return Path(out)


def _by_prompt(rows: Iterable[Fields]) -> dict[str, list[Fields]]:
    """Return the replies of each prompt, ordered by their numbers."""
    by_prompt: dict[str, list[Fields]] = {}
    for row in rows:
        _check(row)
        by_prompt.setdefault(str(row["id"]), []).append(row)
    if not by_prompt:
        raise DataError("There are no replies to show: give rows that `bara generate` has written.")
    return {prompt: sorted(part, key=lambda row: row["number"]) for prompt, part in by_prompt.items()}


def _check(row: Fields) -> None:
    name = f"Reply {row.get('number')} to {row.get('id')!r}"
    if missing := [key for key in NEEDED if key not in row]:
        raise DataError(
            f"{name} has no {', '.join(missing)}: generate replies with --uncertainty and a number of draws."
        )
    counts = {key: len(row[key]) for key in ("token_texts", *(view.key for view in VIEWS))}
    if len({*counts.values()}) > 1:
        found = ", ".join(f"{count} {key}" for key, count in counts.items())
        raise DataError(f"{name} has {found}: give one value of each per token.")


def _capped(view: Colouring, rows: Sequence[Fields]) -> Colouring:
    """Return a view whose strongest colour begins at a quantile of the shown values."""
    values = [value for row in rows for value in view.values(row)[:TOKENS] if value is not None]
    # If nearly all values are 0, the maximum keeps the others visible.
    return replace(view, cap=max(0.0, float(np.quantile(values, CAP)) or max(values)) if values else 0.0)


def _finite(value: object) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _section(rows: Sequence[Fields], views: Sequence[Colouring]) -> Json:
    """Return the template's values for a prompt and its replies."""
    prompt = rows[0]["prompt"]
    messages = [("", prompt)] if isinstance(prompt, str) else [(m["role"], shown_message(m)) for m in prompt]
    return {"id": rows[0]["id"], "said": messages, "replies": [_reply(row, views) for row in rows]}


def _reply(row: Fields, views: Sequence[Colouring]) -> Json:
    values = [view.values(row) for view in views]
    marked = mark_tokens(row["token_texts"], row["reply"])[:TOKENS]
    return {
        "number": row["number"],
        "count": len(row["token_texts"]),
        "tokens": [_token(token, views, parts) for token, *parts in zip(marked, *values, strict=False)],
        "log_prob": _text(_finite(row["log_prob"]), 2),
        "log_prob_mixture": _text(_finite(row["log_prob_mixture"]), 2),
        "epistemic": _text(sum(value for value in values[0] if value is not None), 3),
        "ended": row["ended"],
    }


def _token(token: Marked, views: Sequence[Colouring], values: Sequence[float | None]) -> Json:
    pairs = list(zip(views, values, strict=True))
    return {
        "text": token.text,
        "gap": token.gap,
        "levels": " ".join(view.letter + view.level(value) for view, value in pairs),
        "note": ", ".join(f"{view.name} {_text(value, 3)}" for view, value in pairs),
    }


def _text(value: float | None, digits: int) -> str:
    """Return a number as text, with "<" for numbers that would round to 0."""
    if value is None:
        return "unknown"
    least = 10.0**-digits
    if 0 < abs(value) < least / 2:
        return f"{'<' if value > 0 else '>−'}{least:g}"
    return f"{value + 0.0:.{digits}f}".replace("-", "−")  # -0.0 is 0


def _left_out(by_prompt: dict[str, list[Fields]], prompts: int, replies: int) -> list[str]:
    """Return what the page does not show, in words."""
    shown = list(islice(by_prompt.values(), prompts))
    most = max(len(part) for part in shown)
    longest = max(len(row["token_texts"]) for part in shown for row in part[:replies])
    return [
        *([f"the first {prompts} of {len(by_prompt)} prompts"] if len(by_prompt) > prompts else []),
        *([f"the first {replies} of up to {most} replies to a prompt"] if most > replies else []),
        *([f"the first {TOKENS} tokens of longer replies"] if longest > TOKENS else []),
    ]


def _theme(colours: Sequence[str]) -> list[tuple[str, str]]:
    """Return the background and text colour of each level."""
    grounds = [shade(level / (LEVELS - 1), colours) for level in range(LEVELS)]
    return [(ground, letters(ground)) for ground in grounds]
