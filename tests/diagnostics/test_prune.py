"""Pruning: what a unit adds, units taken out exactly, the tolerance kept, the folder read back."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from inspection_cases import fitted
from torch.testing import assert_close

from bara_pyro.core.adapter import tapped
from bara_pyro.core.gate_draws import gate_draws
from bara_pyro.core.prediction import point_log_probs
from bara_pyro.data import batches
from bara_pyro.diagnostics.gates.prune import prune, unit_importance, weakest, without
from bara_pyro.diagnostics.gates.prune_curve import curve_figure, curve_table, prune_curve
from bara_pyro.errors import ConfigError
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.posthoc.corrections import require_temperature
from bara_pyro.report import markdown
from bara_pyro.report.style import png_bytes
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system, save_system, write_config
from bara_pyro.runs.system import System, assemble, count_parameters

R = 3


def silence(system: System, unit: int) -> None:
    """Make a unit of every module add nothing: its column of B is 0."""
    with torch.no_grad():
        for adapter in system.model.adapters.values():
            adapter.lora_B[:, unit] = 0


@pytest.mark.parametrize(
    ("method", "settings"), [("bara", {"method.centred": True}), ("bara-gate", {}), ("lora", {})]
)
def test_importance_by_taking_out(method: str, settings: dict) -> None:
    # What a unit adds is what is missing where its column of B is 0: measured at the first layer, whose
    # input does not change with it.
    system = fitted(method, **settings)
    rows = system.split("train")
    path = next(target.path for target in system.model.targets if "layers.0" in target.path)
    layer = system.backbone.lm.get_submodule(path)
    found = unit_importance(system, rows)[path]
    adapter = next(a for a in system.model.adapters.values() if a.target.path == path)
    kept = adapter.lora_B.detach().clone()
    added, frozen = torch.zeros(R), 0.0
    for row in range(len(rows)):
        batch = rows.batch([row], system.answer_ids)
        changes = []
        for unit in (None, *range(R)):
            with torch.no_grad():
                adapter.lora_B.copy_(kept)
                if unit is not None:
                    adapter.lora_B[:, unit] = 0
            with tapped([adapter]) as taps, torch.no_grad():
                point_log_probs(system.model, system.guide, batch)
            x, change = taps[path]
            changes.append(change)
        added += torch.stack([(changes[0] - other).square().sum() for other in changes[1:]])
        with torch.no_grad():
            adapter.lora_B.copy_(kept)
            frozen += float(layer(x).square().sum())
    assert_close(found, (added.double() / frozen).sqrt(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", ["bara-gate", "lora"])
def test_silent_units_go_and_nothing_changes(method: str) -> None:
    system = fitted(method)
    silence(system, 1)
    rows = system.split("train")
    importance = unit_importance(system, rows)
    assert all(values[1] == 0 and values[0] > 0 and values[2] > 0 for values in importance.values())
    smaller = without(system, weakest(importance, len(importance)))
    assert set(smaller.model.rank_pattern.values()) == {R - 1}
    assert count_parameters(smaller.model) < count_parameters(system.model)
    test = system.split("test")
    assert_close(draw(smaller, test, 0), draw(system, test, 0), rtol=0, atol=1e-5)


def test_what_was_fitted_to_training_rows_is_kept() -> None:
    options = ("adapter.distance_aware", "adapter.one_pass", "adapter.calibrated")
    system = fitted("bara-gate", **dict.fromkeys(options, True))
    require_temperature(system.corrections).set(0.7)
    rows, test = system.split("train"), system.split("test")
    known = batches(rows, system.answer_ids, 10)
    system.corrections.fit(system.model, system.guide, known, samples=4)
    silence(system, 1)
    importance = unit_importance(system, rows)
    smaller = without(system, weakest(importance, len(importance)))
    assert float(smaller.corrections.distance.radius) == float(system.corrections.distance.radius)
    assert_close(draw(smaller, test, 0), draw(system, test, 0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("settings", [{"method.shape_width": "scalar"}, {"method.latent": "theta"},
                                      {"method.latent": "phi"}, {"method.guide": "delta"}])  # fmt: skip
@pytest.mark.slow
def test_silent_units_of_other_posteriors(settings: dict) -> None:
    system = fitted("bara", **settings)
    silence(system, 0)
    rows = system.split("train")
    smaller = without(system, weakest(unit_importance(system, rows), len(system.model.targets)))
    assert_close(draw(smaller, rows, 0), draw(system, rows, 0), rtol=0, atol=1e-5)
    # The distribution of what is left is what it was: noise levels moved with their units.
    if settings != {"method.latent": "phi"}:
        # In the first layer, whose input is not random.
        first = [target.path for target in system.model.targets if "layers.0." in target.path]
        batch = [rows.batch(range(4), system.answer_ids)]
        whole, part = (
            gate_draws(s.model, s.guide, batch, samples=400, modules=first) for s in (system, smaller)
        )
        # On a log scale, where a Weibull distribution has light tails: the error of 400 draws is some 5 %.
        left, right = (theta.log().std(0) for theta in (part.theta[..., : R - 1], whole.theta[..., 1:]))
        assert_close(left, right, rtol=0.3, atol=1e-3)


def test_weakest_leaves_one_of_each() -> None:
    importance = {"m": torch.tensor([0.3, 0.1, 0.2]), "n": torch.tensor([0.01, 0.02, 0.005])}
    assert {p: k.tolist() for p, k in weakest(importance, 3).items()} == {
        "m": [True, False, True],
        "n": [False, True, False],
    }
    everything = weakest(importance, 100)
    assert {p: k.tolist() for p, k in everything.items()} == {
        "m": [True, False, False],
        "n": [False, True, False],
    }


@pytest.mark.parametrize("method", ["bara", "lora"])
def test_the_tolerance_is_kept_and_used(method: str) -> None:
    system = fitted(method)
    silence(system, 2)
    rows = system.split("train")
    before = draw(system, rows, 0).exp()
    kept = []
    for tolerance in (1e-4, 0.05, 1.0):
        found = prune(system, rows, tolerance)
        assert found.difference <= tolerance
        changed = float((draw(found.system, rows, 0).exp() - before).abs().max())
        assert changed == pytest.approx(found.difference, abs=1e-6)
        kept.append(found.kept)
    units = R * len(system.model.targets)
    assert kept[0] <= units - len(system.model.targets)  # the silent ones
    assert kept[0] >= kept[1] >= kept[2] == len(system.model.targets)


def test_the_folder_reads_back(tmp_path: Path) -> None:
    system = fitted("bara-gate")
    silence(system, 0)
    found = prune(system, system.split("train"), 0.01).system
    write_config(found, tmp_path)
    save_system(found, tmp_path, step=7)
    again = load_system(tmp_path)
    assert again.model.rank_pattern == found.model.rank_pattern != {}
    test = found.split("test")
    for samples in (0, 5):
        assert torch.equal(draw(again, test, samples), draw(found, test, samples))


def test_a_pruned_lora_is_read_by_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    from bara_pyro.lm.loading import load_backbone

    system = fitted("lora", **{"adapter.target_modules": ["q_proj", "v_proj"]})
    silence(system, 1)
    found = prune(system, system.split("train"), 0.01).system
    write_config(found, tmp_path)
    save_system(found, tmp_path, step=7)
    ours = draw(found, found.split("test"), 0)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers under an old name
        lm = PeftModel.from_pretrained(load_backbone("microworld").lm, str(tmp_path))
    for row in range(3):
        batch = found.split("test").batch([row], found.answer_ids)
        with torch.no_grad():
            logits = lm(input_ids=batch.input_ids).logits[0, -1, found.answer_ids]
        assert_close(logits.log_softmax(-1).double(), ours[row], rtol=0, atol=1e-5)


def test_what_cannot_be_pruned() -> None:
    system = fitted("blob")
    with pytest.raises(ConfigError, match="blob cannot be pruned"):
        prune(system, system.split("train"))
    system = fitted("lora")
    with pytest.raises(ConfigError, match="tolerance is 0"):
        prune(system, system.split("train"), 0)
    silence(system, 0)
    smaller = prune(system, system.split("train"), 0.01).system
    with pytest.raises(ConfigError, match="already pruned"):
        prune(replace(smaller), smaller.split("train"), 0.01)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [({"nowhere": 1}, "'nowhere'"), ({"lm_head": 4}, "rank of 4"), ({"lm_head": 0}, "rank of 0")],
)
def test_rank_patterns_that_are_none(pattern: dict, message: str) -> None:
    system = fitted("lora")
    with pytest.raises(ConfigError, match=message):
        assemble(system.config, system.backbone, system.task, 1, pattern)


def test_the_curve() -> None:
    system = fitted("bara")
    train, test = system.split("train"), system.split("test")
    rows = prune_curve(system, train, test, shares=(1.0, 0.5, 0.0), samples=2)
    units = R * len(system.model.targets)
    kept = (units, units - round(0.5 * units), units / R)
    assert [row["share"] for row in rows] == pytest.approx([100 * k / units for k in kept])
    assert rows[0]["difference"] == 0
    assert 0 < rows[1]["difference"] <= 1
    assert rows[0]["parameters"] > rows[1]["parameters"] > rows[2]["parameters"]
    assert "max Δp" in markdown(curve_table(rows, 2))
    assert png_bytes(curve_figure(rows))[:4] == b"\x89PNG"
    with pytest.raises(ConfigError, match="between 0 and 1"):
        prune_curve(system, train, test, shares=(1.2,))


def test_a_parameter_of_no_unit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a guide of one's own, which may set how far draws spread."""
    real = WeibullGuide.__init__

    def init(self: WeibullGuide, *args: object, **options: object) -> None:
        real(self, *args, **options)
        self.log_spread = torch.nn.Parameter(torch.zeros(()))

    monkeypatch.setattr(WeibullGuide, "__init__", init)
    system = fitted("bara-gate")
    with torch.no_grad():
        system.guide.log_spread.fill_(-2.0)
    smaller = without(system, weakest(unit_importance(system, system.split("train")), 2))
    assert smaller.guide.log_spread.item() == -2.0
