"""The paper's figures: sparsity by layer, and scores by the number of replies."""

from collections.abc import Mapping, Sequence
from statistics import mean

from matplotlib.figure import Figure

from bara_pyro.report.style import dress, legend_of, line_style, new_figure
from experiments.engine.record import Record
from experiments.paper.protocol import ARMS

Panels = Mapping[str, Mapping[str, Sequence[float]]]
"""Panel -> name of a line -> its values, from 1 on."""


def figure_of(name: str, records: Sequence[Record]) -> Figure | None:
    """Return the figure of a table from the records of its runs; None if it has none."""
    done = [record for record in records if "failed" not in record and not record["variant"]]
    arms = {arm: [r for r in done if r["arm"] == arm] for arm in dict.fromkeys(r["arm"] for r in done)}
    if name == "sparsity" and done:
        kinds = {arm: own[0]["gates"]["layers"] for arm, own in arms.items()}
        layers = {
            ARMS[arm].name: {gate: _mean([r["gates"]["layers"][gate] for r in own]) for gate in kinds[arm]}
            for arm, own in arms.items()
        }
        return _lines(layers, "layer", "sparsity (%)")
    if name == "alignment" and done:
        curves = {
            title: {ARMS[arm].name: _mean([r[key]["best"] for r in own]) for arm, own in arms.items()}
            for title, key in (("AlpacaEval, wins", "chat"), ("HumanEval, passed", "programs"))
        }
        return _lines(curves, "best of", "%")
    return None


def _mean(found: Sequence[Sequence[float]]) -> list[float]:
    return [mean(values) for values in zip(*found, strict=True)]


def _lines(panels: Panels, x_label: str, y_label: str) -> Figure:
    figure = new_figure(3.4 * len(panels) + 0.6, 3.0)
    shown = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (title, series) in zip(shown, panels.items(), strict=True):
        for index, (name, values) in enumerate(series.items()):
            axes.plot(range(1, len(values) + 1), values, label=name, **line_style(index))
        dress(axes, x_label, y_label, title)
    legend_of(shown[-1])
    return figure
