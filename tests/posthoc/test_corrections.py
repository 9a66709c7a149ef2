"""The protocol of corrections: another one is a class and an entry in the list, evidence is read once."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from core_cases import bara_pair, make_batch, unlabelled
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.modules import frozen
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.posthoc import correction, corrections, one_pass
from bara_pyro.posthoc.correction import Correction, PredictedRows, TrainingRows
from bara_pyro.posthoc.corrections import CORRECTIONS, Corrections, require_temperature
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_weights
from bara_pyro.runs.system import build_system
from bara_pyro.runs.writing import save_system, write_config

ALL = {"calibrated": True, "distance_aware": True, "one_pass": True}
SHARE = 0.2


class Mixed(Correction):
    """Gives a share of every prediction to all answers alike."""

    name, option, subject = "mixed", "mix_uniform", "Mixtures"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.share = frozen(torch.zeros(()))

    @property
    def fitted(self) -> bool:
        return bool(self.share > 0)

    def fit(self, rows: TrainingRows) -> dict[str, float]:
        self.share.fill_(SHARE)
        return {"share": SHARE, "rows": sum(map(len, rows.batches))}

    def correct(self, draws: Tensor, rows: PredictedRows) -> Tensor:
        share = float(self.share)
        return ((1 - share) * draws.exp() + share / draws.shape[-1]).log()


def mixed(log_probs: Tensor) -> Tensor:
    return (0.8 * log_probs.exp() + 0.2 / 3).log()


def known_rows() -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(3, 30, (8, 4, 4), generator=generator).tolist()
    return [
        replace(make_batch(rows=list(map(tuple, four))), labels=None, ids=tuple(f"{i}-{k}" for k in range(4)))
        for i, four in enumerate(rows)
    ]


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "CORRECTIONS", (*CORRECTIONS, Mixed))


@pytest.mark.usefixtures("listed")
def test_another_correction_is_fitted_and_applied_after_the_others() -> None:
    pair = bara_pair("llama", seed=0, scale=1.0, form="gate", num_data=32, fit={"init_kappa": 1.0})
    three, four = Corrections(pair[0], **ALL), Corrections(pair[0], **ALL, mix_uniform=True)
    for own in (three, four):
        require_temperature(own).set(math.log(1.7))
    told = four.fit(*pair, known_rows(), samples=6)
    assert {"mixed_share", "mixed_rows"} == told.keys() - three.fit(*pair, known_rows(), samples=6).keys()
    assert told["mixed_rows"] == 32
    far = unlabelled()
    for how in ({"samples": 0}, {"samples": 5, "seed": 3}, {"samples": 6, "repeats": 2}):
        assert_close(four.predict(*pair, far, **how), mixed(three.predict(*pair, far, **how)))
    for own, plain in zip(
        four.record(*pair, far, samples=5), three.record(*pair, far, samples=5), strict=True
    ):
        assert_close(own.log_probs, mixed(plain.log_probs))
    drawn, numbers = torch.randn(3, 4, 3, dtype=torch.float64).log_softmax(-1), torch.arange(3)
    assert_close(
        four.of_draws(pair[0], far, drawn, numbers), mixed(three.of_draws(pair[0], far, drawn, numbers))
    )


@pytest.mark.usefixtures("listed")
def test_another_correction_is_stored_in_the_run(tmp_path: Path) -> None:
    config = load_config(overrides={"method": "bara-gate", "task.limit": 12, "train.steps": 1})
    plain = build_system(config)
    systems = [replace(plain, corrections=Corrections(plain.model, mix_uniform=True)) for _ in range(2)]
    split = plain.split("train")
    batch = split.batch(range(12), plain.answer_ids)
    assert systems[0].corrections.fit(plain.model, plain.guide, [batch]) == {
        "mixed_share": 0.2,
        "mixed_rows": 12,
    }
    write_config(systems[0], tmp_path)
    save_system(systems[0], tmp_path, step=1)
    fresh = draw(systems[1], split, 3)
    load_weights(systems[1], tmp_path)
    found = draw(systems[1], split, 3)
    assert torch.equal(found, draw(systems[0], split, 3))
    assert (found - fresh).abs().max() > 0.01


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Unknown correction 'distance_awar' \(distance_aware\?\)"):
        Corrections(bara_pair("llama")[0], distance_awar=True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """How often frozen states were computed, and predictions made by number of draws."""
    count: Counter = Counter()

    def counting(real: Callable, key: Callable[[dict], object]) -> Callable:
        def counted(*given: object, **how: object) -> object:
            count[key(how)] += 1
            return real(*given, **how)

        return counted

    monkeypatch.setattr(correction, "frozen_states", counting(correction.frozen_states, lambda how: "frozen"))
    monkeypatch.setattr(corrections, "predict", counting(corrections.predict, lambda how: how["samples"]))
    return count


@pytest.mark.parametrize(
    ("options", "fit", "applied"),
    [
        ({"calibrated": True}, {}, {5: 1, 0: 1}),
        ({"distance_aware": True}, {"frozen": 8, 0: 8}, {5: 1, 0: 1, "frozen": 1}),
        ({"one_pass": True}, {0: 8, 6: 8}, {5: 1, 0: 1}),
    ],
)
def test_only_what_a_correction_reads_is_computed(
    options: dict[str, bool], fit: dict, applied: dict, calls: Counter
) -> None:
    pair = bara_pair("llama", seed=0, scale=1.0, form="gate", num_data=32, fit={"init_kappa": 1.0})
    own = Corrections(pair[0], **options)
    own.fit(*pair, known_rows(), samples=6)
    assert calls == fit
    calls.clear()
    for samples in (0, 5):
        own.predict(*pair, unlabelled(), samples=samples)
    assert calls == applied


def test_what_rows_say_is_computed_once(calls: Counter) -> None:
    pair = bara_pair("llama", form="gate", num_data=32)
    batches = known_rows()
    rows = TrainingRows(
        *pair, lambda batch, **how: corrections.predict(*pair, batch, **how), batches, None, None, 6, 0
    )
    for _ in range(2):
        assert len(rows.frozen_states) == len(rows.points) == len(rows.average) == 32
    assert calls == {"frozen": 8, 0: 8, 6: 8}
    assert len(rows.first(9).batches) == 3
    assert len(rows.first(9).points) == 12


def test_the_others_are_fitted_to_scores_at_the_temperature() -> None:
    pair = bara_pair("llama", seed=0, scale=1.0, form="gate", num_data=32)
    own = Corrections(pair[0], calibrated=True, distance_aware=True)
    scale = own.fit(*pair, known_rows())["distance_scale"]
    require_temperature(own).set(math.log(2))
    assert own.fit(*pair, known_rows())["distance_scale"] == pytest.approx(scale / 2, rel=1e-6)


def test_fits_use_whole_batches_up_to_their_largest_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "MOST", 20)
    monkeypatch.setattr(one_pass, "MOST", 9)
    pair = bara_pair("llama", seed=0, scale=1.0, form="gate", num_data=32, fit={"init_kappa": 1.0})
    groups, offered = [f"g{i // 3}" for i in range(32)], torch.ones(32, 3, dtype=torch.bool)
    own = Corrections(pair[0], distance_aware=True, one_pass=True)
    told = own.fit(*pair, known_rows(), groups=groups, offered=offered, samples=4)
    assert (told["distance_rows"], told["one_pass_rows"]) == (20, 12)
