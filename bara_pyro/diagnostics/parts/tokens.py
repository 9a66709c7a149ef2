"""Token maps: the expected share of gates that are nearly off, by token and layer.

For each token this is the share of entries of `Phi * theta` below tau, averaged over draws and modules
(paper, Section "Token-level Sparsity Visualization"). The answer head is left out because it sees only the
last token.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from markupsafe import Markup
from torch import Tensor

from bara_pyro.atomic import write_text
from bara_pyro.core.gate_draws import chosen_modules
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.prediction import record
from bara_pyro.data import Example, encode
from bara_pyro.diagnostics import Number, Result
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.sparsity import TAU, check_tau
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.report.html import (
    Block,
    ColourScale,
    Link,
    Paragraph,
    Section,
    Shaded,
    Word,
    document,
    source,
    template_environment,
)
from bara_pyro.report.style import COLOURS, EQUAL, channels, letters, shade
from bara_pyro.runs.system import System

MAX_LENGTH = 512  # the most tokens in a text
TEXTS = {
    "irrigation": "Drip lines bring water to the roots at night, when little of it evaporates.",
    "heritage": "Only three families still carve the wooden masks that open the spring festival.",
    "ethics": "If the program refuses a loan, somebody must be able to say why, and to whom to complain.",
    "shopping": "Most people who leave a full basket behind come back within a day if the price holds.",
    "infection": "A dry cough and a slight fever of more than a week are a reason to listen to the lungs.",
    "classroom": "Pupils watch the lecture at home, so that the lesson is free for their questions.",
    "parks": "On summer evenings the streets around the park are two degrees cooler than the station.",
    "sensors": "The probe in the silo reports heat and moisture every minute and sleeps in between.",
    "imaging": "In the second scan the shadow beside the rib had gone: it was a fold of skin.",
}
"""Nine short texts from nine domains."""


class TextUse(Result):
    """The token map of one text."""

    title: str
    tokens: list[str]  # the T tokens as text
    mean: list[Number]  # `T`: expected share of gates off over all modules, percent with two decimals
    percent: list[list[Number]]  # `M x T`: the same for each module


class TokenUse(Result):
    """Token maps."""

    tau: float  # a gate below this threshold is off
    draws: int  # number of draws averaged over; 0 for the mean gate
    modules: list[str]  # paths of the M modules
    texts: list[TextUse]  # in the order given


def token_use(c: Context) -> TokenUse | None:
    """Return the token maps of a run; None if only the answer head (or nothing) has gates."""
    if not c.has_gates or all(target.is_head for target in c.system.model.targets):
        return None
    samples = 2 * c.options.samples if c.system.guide.stochastic else 0
    texts = {f"text {i}": text for i, text in enumerate(c.options.texts, 1)} or default_texts(c.system)
    return token_maps(c.system, texts, samples=samples, tau=c.options.tau)


def default_texts(system: System) -> dict[str, str]:
    """Return nine texts for token maps: English texts, or rows of the run if its model cannot read those.

    The language model of a microworld knows only the words of its tasks.
    """
    tokenizer = system.backbone.tokenizer
    ids = tokenizer(" ".join(TEXTS.values()), add_special_tokens=False)["input_ids"]
    if tokenizer.unk_token_id is None or ids.count(tokenizer.unk_token_id) < len(ids) / 10:
        return dict(TEXTS)
    name = system.config.task.evaluate_on
    rows = {row.id: row for row in getattr(system.task, name)}
    examples = [rows[row_id] for row_id in system.split(name).ids[: len(TEXTS)]]
    return {row.id: f"{row.context} {row.question}".strip() for row in examples}


@torch.no_grad()
def token_maps(
    system: System,
    texts: dict[str, str],
    *,
    samples: int = 100,
    tau: float = TAU,
    seed: int = 0,
    modules: Sequence[str] | None = None,
) -> TokenUse:
    """Return the expected sparsity of the gates at every token of some texts.

    Args:
        system: a fitted BaRA run.
        texts: title -> text.
        samples: number of draws; 0 for the mean gate.
        tau: a gate below this threshold counts as off.
        seed: seed of the draws.
        modules: paths of the modules; if None, all except the answer head.

    Raises:
        ConfigError: the method has no gates, a module is unknown, only the answer head has gates, or `tau` is
            negative.
        DataError: there is no text, or a text is empty or too long.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.parts.tokens import token_maps
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> [text] = token_maps(run, {"goats": "in winter bimu keeps goats ."}, samples=5).texts
        >>> text.tokens, len(text.mean)
        (['in', 'winter', 'bimu', 'keeps', 'goats', '.'], 6)
    """
    check_tau(tau)
    model, gates, tokenizer = system.model, system.model.gates, system.backbone.tokenizer
    require_answer_tokens(model.likelihood, "Token maps")
    if gates is None:
        raise ConfigError(f"{system.config.method.name} has no gates: give a BaRA run for token maps.")
    body = [target.path for target in model.targets if not target.is_head]
    paths = [path for path in chosen_modules(model, modules) if path in body]
    if not paths:
        raise ConfigError(
            "Only the answer head has gates, and it sees only the last token: give a run with other modules."
        )
    if not texts or not all(text.strip() for text in texts.values()):
        raise DataError("There is no text, or a text is empty: give each title a text.")
    longest = max(MAX_LENGTH, system.config.task.max_length)  # training rows always fit
    examples = [Example(title, text) for title, text in texts.items()]
    split = encode(examples, tokenizer, longest, context=system.backbone.context)
    maps = []
    for row, title in enumerate(split.ids):
        batch = split.batch([row], system.answer_ids).to(system.backbone.device)
        below = torch.zeros(len(paths), batch.input_ids.shape[1], dtype=torch.float64)
        for piece in record(model, system.guide, batch, samples=samples, seed=seed):
            for i, path in enumerate(paths):
                # A module of smaller rank has gates only in its first units.
                gate = gates.of(piece.values, path)[..., : model.rank_pattern.get(path, model.r)]
                below[i] += (gate.abs() < tau).double().mean(-1).sum((0, 1)).cpu()
        percent = (100 * below / max(samples, 1)).float()
        tokens = [tokenizer.decode([token]) for token in split.token_ids[row]]
        rounded = [_rounded(module) for module in percent]
        maps.append(TextUse(title=title, tokens=tokens, mean=_rounded(percent.mean(0)), percent=rounded))
    return TokenUse(tau=tau, draws=samples, modules=paths, texts=maps)


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 2) for value in values.tolist()]


PAGE, PACKAGE = "tokens.html", "bara_pyro.diagnostics.parts"
CLOSE = 5.0  # percent: a smaller range over tokens counts as no difference


def render_tokens(found: TokenUse) -> Section:
    """Return the section with each text, its tokens shaded by the mean over modules."""
    values = [value for text in found.texts for value in text.mean if not math.isnan(value)]
    low, high = min(values), max(values)
    fewest, most = (_where(found, value) for value in (low, high))
    words = "The gates hardly depend on the word"
    if high - low > CLOSE:
        words = "The gates depend on the word"
    plain = (
        f"{words}: {low:.0f} % of them are nearly off for {fewest} (fewest), {high:.0f} % for {most} (most)."
    )
    technical = [
        f"In the tokens of {len(found.texts)} texts between {low:.0f} and {high:.0f} % of the gates Φθ are "
        f"below {found.tau:g}, averaged over {max(found.draws, 1)} draws."
    ]
    label = "share of gates that are nearly off; light: few gates in use"
    blocks: list[Block] = [
        Paragraph(["For single layers and the value of each token see the ", Link("token maps", PAGE), "."]),
        ColourScale(COLOURS, f"{low:.1f} %", f"{high:.1f} %", label),
        *(_shaded(text, low, high) for text in found.texts),
    ]
    return Section("Gates by token", blocks, plain, technical)


def _where(use: TokenUse, value: float) -> str:
    pairs = ((t, mean) for text in use.texts for t, mean in zip(text.tokens, text.mean, strict=True))
    return next(repr(token.strip()) for token, mean in pairs if mean == value)


def _shaded(text: TextUse, low: float, high: float) -> Shaded:
    words = []
    for token, value in zip(text.tokens, text.mean, strict=True):
        ground = shade((value - low) / (high - low) if high > low else 0.5)
        words.append(Word(with_visible_spaces(token), ground, letters(ground), f"{value:.1f} % nearly off"))
    return Shaded(text.title, words)


def with_visible_spaces(token: str) -> str:
    """Return a token with symbols for line breaks and blanks."""
    return token.replace("\n", "⏎").strip() or "␣"


def token_page(found: TokenUse, path: Path, title: str) -> Path:
    """Write token maps as one self-contained HTML file with a choice of layer and the value of each token.

    Without texts this raises a `DataError`.
    """
    if not found.texts:
        raise DataError("There are no token maps to draw: give at least one text.")
    texts = [
        {"title": t.title, "tokens": [with_visible_spaces(token) for token in t.tokens]} for t in found.texts
    ]
    body = template_environment(PACKAGE).get_template("tokens.html").render(
        tau=f"{found.tau:g}", draws=max(found.draws, 1), colours=COLOURS, texts=texts
    )  # fmt: skip
    data = {
        "modules": found.modules,
        # Layer 0 is the mean over layers. One decimal, as displayed.
        "texts": [[_one_decimal(t.mean), *map(_one_decimal, t.percent)] for t in found.texts],
        "scale": [channels(colour) for colour in COLOURS],
        "equal": EQUAL,
    }
    # Module names are arbitrary: "</script>" in one must not end the script.
    plain = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    script = f"const data = {plain};\n{source(PACKAGE, 'tokens.js')}"
    page = document(title, body=Markup(body), style=source(PACKAGE, "tokens.css"), script=script)  # noqa: S704
    write_text(path, page)
    return path


def _one_decimal(values: Sequence[float]) -> list[float]:
    return [0.0 if math.isnan(value) else round(value, 1) for value in values]
