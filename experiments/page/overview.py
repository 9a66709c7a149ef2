"""The overview of all results: a table of questions and answers, and a figure of BaRA against LoRA."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bara_pyro.errors import DataError
from bara_pyro.report.style import INK, new_figure
from experiments.engine.figures import PAGE, draw_difference, name_rows, save
from experiments.page.template import Renderer

TEXT = Path(__file__).with_suffix(".md")
# fmt: off
ORDER = (
    "verdict", "real_contrast", "real", "in_distribution", "untuned", "regret", "panel", "learning_curves",
    "backbones", "parameter_budget", "out_of_distribution", "distance", "uncertainty", "decide", "one_pass",
    "leave_one_out", "active", "reference_posterior", "sbc", "pac_bayes", "hierarchy", "prior_sensitivity",
    "guides_and_gates", "remedies", "lr_sweep", "reproductions", "sparsity", "pruning", "efficiency",
    "chat", "reward", "code", "instructions", "humaneval", "demo",
)
# fmt: on
"""Pages as they are listed; others come behind them."""
CAPTION = (
    "NLL of BaRA's gate form minus that of LoRA, with 95 % intervals; left of 0 BaRA is better. Each label "
    "says how the two were trained. Filled points: the interval does not contain 0."
)
# Results, the path to the comparison there, and 1, or -1 if it is LoRA minus the gate form.
Place = tuple[str, tuple[str, ...], int]
PLACES: dict[str, Place] = {
    "microworld:\nboth tuned": ("in_distribution", ("lora", "bara-gate", "average"), 1),
    "microworld, shifted rows:\nboth tuned": ("out_of_distribution", ("lora", "bara-gate", "average"), 1),
    "new worlds:\ndefault BaRA, tuned LoRA": ("verdict", ("nll",), 1),
    "new worlds:\nboth by default": ("verdict", ("lora",), -1),
    "SmolLM2:\nboth tuned": ("real_tuned", ("lora", "bara-gate", "ag_news"), 1),
    "SmolLM2:\nuncalibrated BaRA, tuned LoRA": ("real_contrast", ("temperature", "bara-gate", "average"), 1),
    "SmolLM2:\ncalibrated BaRA, tuned LoRA": (
        "real_contrast_calibrated",
        ("temperature", "bara-gate", "average"),
        1,
    ),
    "SmolLM2:\ncalibrated BaRA, plain LoRA": (
        "real_contrast_default",
        ("lora", "bara-gate", "average"),
        1,
    ),
    "SmolLM2:\nboth calibrated": (
        "real_contrast_default",
        ("LoRA with rehearsal", "bara-gate", "average"),
        1,
    ),
}


def overview(render: Renderer, pages: Mapping[str, str], figures: Path | None) -> str:
    """Return the page: a row for each question and its answer; the figure is drawn if a folder is named.

    Args:
        render: of the results.
        pages: name -> page, which begins with its question and the answer to it.
        figures: where to draw.
    """
    rows = "\n".join(row(name, pages[name]) for name in sorted(pages, key=place))
    found = contrasts(render)
    if found and figures is not None:
        save(contrast_figure(found), figures / "overview.svg", CAPTION)
    figure = f"![{CAPTION}](figures/overview.svg)\n\n*{CAPTION}*\n\n" if found else ""
    return TEXT.read_text().format(figure=figure, rows=rows, error=100 * (0.25 / 1000) ** 0.5)


def place(name: str) -> tuple[int, str]:
    """Return what pages are sorted by."""
    return ORDER.index(name) if name in ORDER else len(ORDER), name


def row(name: str, page: str) -> str:
    """Return the line of a page: its question, and the first sentence behind it."""
    title, _, text = page.removeprefix("# ").partition("\n\n")
    return f"| [{title}](results/{name}.md) | {headline(text)} |"


def headline(answer: str) -> str:
    r"""Return the first sentence of an answer, on one line, without emphasis and the parts of its errors.

    >>> headline("**It does: by 1.2 [0.9, 1.5] (SE 0.1 by seeds, 0.1 by rows) points.** More\nwords.")
    'It does: by 1.2 [0.9, 1.5] points.'
    """
    text = " ".join(answer.split("\n\n", maxsplit=1)[0].split()).replace("**", "")
    text = re.sub(r" \(SE [^()]* by seeds, [^()]* by rows\)", "", text)
    return re.split(r"(?<=[.?!])\s+(?=[A-ZΦθ])", text)[0]


def contrasts(render: Renderer) -> dict[str, Mapping[str, Any]]:
    """Return what is compared -> `difference`, `low` and `high` in nats, of the studies that are stored."""
    found: dict[str, Mapping[str, Any]] = {}
    for label, (name, where, sign) in PLACES.items():
        if name not in render.stored:
            continue
        view: Any = render.view(name)
        with suppress(DataError, KeyError):  # arms that were not run
            entry = view[where[0]] if len(where) == 1 else view.versus(*where)["nll"]
            low, high = sorted((sign * entry["low"], sign * entry["high"]))
            found[label] = {"difference": sign * entry["difference"], "low": low, "high": high}
    return found


def contrast_figure(found: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the contrasts with their intervals, the first one on top."""
    figure = new_figure(PAGE, 0.42 * len(found) + 1.0)
    axes = figure.add_subplot()
    for place, (label, entry) in enumerate(found.items()):
        draw_difference(axes, place, entry, label.replace("\n", " "))
    axes.axvline(0, color=INK, linewidth=0.9, linestyle="--")
    name_rows(axes, found, "NLL minus LoRA's (nats)")
    return figure
