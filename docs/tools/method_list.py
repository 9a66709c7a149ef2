"""The list of methods as a page of the site: a table, and the settings of each; from the registry."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bara_pyro.cli.architectures import empty_backbone
from bara_pyro.errors import DataError
from bara_pyro.methods import METHODS, Method, build
from bara_pyro.runs.config import parse_config
from bara_pyro.runs.system import adapter_options, count_parameters
from experiments.engine.methods import display, in_order

NOTES = Path(__file__).parents[2] / "docs" / "methods.md"
ARCHITECTURE = "qwen2.5-7b"
CREDIT = re.compile(r"\(([^()]*(?:\d{4}\.\d{4,5}|\d{4})[^()]*)\)")
PAPER = re.compile(r"arXiv (\d{4}\.\d{4,5})")
COLUMNS = ("method", "paper", "model", "guide", "parameters", "what is minimised")
SETTINGS = ("setting", "default", "what it is")
INTRO = f"""# Every method

Written from the registry when this site is built. `bara methods` prints the list, `--method NAME` trains
one, and `--set method.KEY=VALUE` changes a setting. Formulas and remarks are those of [methods](methods.md).
Parameters are the trainable ones on `{ARCHITECTURE}` with every default, as
`bara params --arch {ARCHITECTURE} --method NAME` counts them.
"""


def method_list() -> str:
    """Return the page in Markdown.

    Raises:
        DataError: docs/methods.md has no row for a method.
    """
    said, backbone = remarks(NOTES.read_text(encoding="utf-8")), empty_backbone(ARCHITECTURE)
    rows, sections = [], []
    for method in (METHODS[name] for name in in_order(METHODS)):
        if method.name not in said:
            raise DataError(f"docs/methods.md has no row for the method {method.name}: write one.")
        config = parse_config({"method": method.name})
        pair = build(config.method, backbone, 1, adapter_options(config))
        program, guide = ([type(part).__module__, type(part).__name__] for part in pair)
        formula, posterior, objective = said[method.name]
        rows.append(
            (
                f"[`{method.name}`](#{method.name})",
                paper(method.summary),
                *(f"[`{name}`][{module}.{name}]" for module, name in (program, guide)),
                f"{sum(count_parameters(part) for part in pair):,}",
                objective,
            )
        )
        sections.append(
            f"## {display(method.name)} {{ #{method.name} }}\n\n{method.summary}.\n\n"
            f"Model: {formula}. Posterior: {posterior}. What is minimised: {objective}.\n\n{settings(method)}"
        )
    return "\n".join([INTRO, table(COLUMNS, rows), *sections])


def remarks(page: str) -> dict[str, list[str]]:
    r"""Return what the first table of docs/methods.md says: name -> model, posterior, what is minimised.

    >>> remarks("| `lora` | BA | point | CE |\n| `mine` | the same | Normal | ELBO |")
    {'lora': ['BA', 'point', 'CE'], 'mine': ['BA', 'Normal', 'ELBO']}
    """
    found: dict[str, list[str]] = {}
    above: list[str] = []
    for line in page.splitlines():
        name, *cells = (cell.strip() for cell in line.strip("| ").split(" | "))
        if re.fullmatch(r"`[\w-]+`", name) and len(cells) >= 3 and name.strip("`") not in found:
            above = [above[i] if cell == "the same" else cell for i, cell in enumerate(cells[:3])]
            found[name.strip("`")] = above
    return found


def paper(summary: str) -> str:
    """Return where a method was published, as its summary says in brackets, with a link where that is arXiv.

    >>> paper("BLoB: Gaussian A (arXiv 2406.11675)")
    '[arXiv 2406.11675](https://arxiv.org/abs/2406.11675)'
    """
    credits = CREDIT.findall(summary)
    return PAPER.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", credits[-1]) if credits else "–"


def settings(method: Method[Any, Any, Any]) -> str:
    """Return a table of a method's settings with their defaults, or that it has none."""
    rows = []
    for name, field in method.config.model_fields.items():
        if name != "name":
            default = method.defaults.get(name, field.get_default(call_default_factory=True))
            rows.append(
                (f"`{name}`", f"`{json.dumps(default)}`", (field.description or "").replace("|", r"\|"))
            )
    return table(SETTINGS, rows) if rows else "It has no settings of its own.\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (columns, ["---"] * len(columns), *rows))
