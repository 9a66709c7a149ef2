"""Figures: what they show and that they are written whole."""

import math
import os
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure

from bara_pyro.errors import CheckpointError, DataError
from bara_pyro.metrics import reliability_bins, risk_coverage
from bara_pyro.report.figures import reliability_diagram, risk_coverage_figure, training_curves
from bara_pyro.report.style import png_bytes, save

PNG = b"\x89PNG\r\n\x1a\n"


def predictions(seed: int = 0, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    log_probs = (2 * torch.randn(100, classes, generator=generator)).log_softmax(-1)
    return log_probs, torch.randint(classes, (100,), generator=generator)


def history(kl: bool, steps: int = 30) -> list[dict[str, float]]:
    records = [{"step": t, "loss": 1 / (t + 1), "nll": 1 / (t + 1)} for t in range(steps)]
    return [r | ({"kl_theta": 0.1, "kl_phi": 1e-5 * r["step"]} if kl else {}) for r in records]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_reliability_diagram_shows_the_bins():
    bins = reliability_bins(*predictions())
    figure = reliability_diagram({"LoRA": bins, "BaRA": bins})
    diagram, counts = figure.axes[:2]
    assert titles(figure)[::2] == [f"LoRA\nECE {bins.ece:.1f} %", f"BaRA\nECE {bins.ece:.1f} %"]
    assert diagram.get_ylabel() == "Accuracy"
    assert (counts.get_xlabel(), counts.get_ylabel()) == ("Confidence", "Rows (%)")
    assert sum(bar.get_height() for bar in counts.patches) == pytest.approx(100)
    filled = int((bins.counts > 0).sum())
    heights = [bar.get_height() for bar in diagram.patches[:filled]]
    assert heights == pytest.approx(bins.accuracy[bins.counts > 0].tolist())
    # The hatched bars reach from the accuracy to the confidence of their bin.
    tops = [bar.get_y() + bar.get_height() for bar in diagram.patches[filled:]]
    assert tops == pytest.approx(bins.confidence[bins.counts > 0].tolist())


@pytest.mark.parametrize("number", [1, 4, 6])
def test_any_number_of_systems_on_one_scale(number: int):
    bins = reliability_bins(*predictions())
    figure = reliability_diagram({f"s{i}": bins for i in range(number)})
    assert len(figure.axes) == 2 * number
    assert len({axes.get_ylim() for axes in figure.axes[1::2]}) == 1


def test_training_curves_have_a_panel_a_part():
    figure = training_curves({"BaRA": history(kl=True), "LoRA": history(kl=False)}, title="A run")
    assert titles(figure) == [
        "Negative ELBO",
        "Negative log-likelihood",
        "KL, local gate θ",
        "KL, global gate Φ",
    ]
    assert [axes.get_ylabel() for axes in figure.axes] == ["nats per example"] * 4
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "Training step", "Training step"]
    # A raw and a smoothed line a run; LoRA has no KL.
    assert [len(axes.lines) for axes in figure.axes] == [4, 4, 2, 2]
    raw, smoothed = figure.axes[1].lines[:2]
    assert raw.get_ydata().tolist() == [1 / (t + 1) for t in range(30)]
    assert smoothed.get_label() == "BaRA"
    assert figure.get_suptitle() == "A run"


def test_training_curves_without_kl_draw_the_nll_once():
    figure = training_curves({"LoRA": history(kl=False)})
    assert titles(figure) == ["Negative log-likelihood"]
    assert figure.axes[0].get_xlabel() == "Training step"


def test_training_curves_take_gaps_and_one_record():
    records = [{"step": 0, "nll": 1.0, "kl_phi": None}, {"step": 1, "nll": math.nan}, {"step": 2, "nll": 3.0}]
    figure = training_curves({"a": records, "b": records[:1]}, window=3)
    assert figure.axes[0].lines[1].get_ydata().tolist() == [1.0, 2.0, 3.0]


def test_risk_coverage_figure():
    coverage, risk = risk_coverage(*predictions())
    figure = risk_coverage_figure({"LoRA": (coverage, risk)})
    (axes,) = figure.axes
    assert "Coverage" in axes.get_xlabel()
    assert axes.get_ylabel() == "Risk: wrong among them (%)"
    assert axes.lines[0].get_ydata().tolist() == risk.tolist()
    assert axes.get_legend().get_texts()[0].get_text() == f"LoRA (AURC {float(risk.mean()):.1f} %)"


def all_figures() -> list[Figure]:
    log_probs, labels = predictions()
    # A dollar sign or a leading underscore in a name must not start a formula or hide it from the legend.
    return [
        reliability_diagram({"a$x_{$b": reliability_bins(log_probs, labels)}),
        training_curves({"a$x_{$b": history(kl=True)}, title="$x_{$"),
        risk_coverage_figure({"a$x_{$b": risk_coverage(log_probs, labels)}),
    ]


@pytest.mark.parametrize("index", range(3))
def test_saved_file_is_a_png_and_the_same_bytes_each_time(index: int, tmp_path: Path):
    path = save(all_figures()[index], tmp_path / "new" / "figure.png")
    content = path.read_bytes()
    assert content.startswith(PNG)
    assert len(content) > 5000
    assert save(all_figures()[index], tmp_path / "again.png").read_bytes() == content
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == ["again.png", "figure.png"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "figure.png"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(CheckpointError, match="disk full"):
        save(all_figures()[2], path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_pyplot_has_no_part_in_it():
    # Other tests import pyplot, so its presence says nothing: its state must stay as it was.
    before = dict(matplotlib.rcParams), pyplot.get_fignums()
    for figure in all_figures():
        png_bytes(figure)
    assert (dict(matplotlib.rcParams), pyplot.get_fignums()) == before


def test_nothing_to_draw():
    for draw in (reliability_diagram, training_curves, risk_coverage_figure):
        with pytest.raises(DataError, match="at least one"):
            draw({})
    with pytest.raises(DataError, match="loss, nll, kl_theta, kl_phi"):
        training_curves({"a": [{"step": 0, "accuracy": 1.0}]})
