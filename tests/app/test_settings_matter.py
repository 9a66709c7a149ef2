"""A setting of a method or of its training changes what is learnt, or is refused: none is ignored.

What a method reads is not enough: a program may be given a setting that nothing of it depends on.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from app_cases import Place, questions, write_rows
from pydantic.fields import FieldInfo
from setting_cases import candidates
from torch import Tensor

import bara_pyro as bp
from bara_pyro.core.noise import seeded
from bara_pyro.errors import BaraError, ConfigError, TrainingError
from bara_pyro.guides.families import FAMILIES
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods import METHODS, recipes
from bara_pyro.processes import ALONE
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.steps import make_svi, micro_batches
from bara_pyro.runs.stored import resumed
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import draw, train, what_is_fitted

# Under all of them each setting of BaRA that is not named here.
GATES = [
    {"guide": guide, "latent": latent} for guide, latent in product(FAMILIES, ("phi*theta", "phi", "theta"))
]
TRAINING = {
    "train.lr": 0.1,
    "train.local_lr_scale": 0.5,
    "train.warmup": 0.9,
    "train.weight_decay": 0.5,
    "train.clip_norm": 1e-3,
}
TELLING = {"tolerance": 1e-7}  # what only a certain value shows: that every noise here exceeds it
Outcome = list[Tensor] | BaraError


@pytest.fixture(scope="module")
def here(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Rows of several lengths: with padding."""
    rows = [{**row, "question": "the " * (i % 3) + row["question"]} for i, row in enumerate(questions())]
    return Place(place.backbone, write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", rows))


@pytest.fixture(scope="module")
def backbone(here: Place) -> Backbone:
    return bp.load_backbone(here.backbone)


@pytest.fixture(autouse=True)
def short_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The KL of published recipes counts from the first steps on, not only after thousands."""
    monkeypatch.setattr(recipes, "kl_cycle", lambda *_: 2)


def outcome(here: Place, backbone: Backbone, settings: dict[str, Any]) -> Outcome:
    """Return parameters and predictions after a few steps, or why there are none."""
    small = {"task.limit": 8, "task.validation_rows": 4, "train.steps": 4, "adapter.r": 6}
    named = {key.replace(".", "__"): value for key, value in (small | settings).items()}
    try:
        system = build_system(here.config(**named), backbone)
        draws = torch.Generator().manual_seed(0)
        for name, weight in system.model.named_parameters():
            if name.endswith("lora_B"):  # at its start it is 0, and nothing before it matters
                torch.nn.init.normal_(weight, std=0.1, generator=draws)
        svi, section = make_svi(system), system.config.train
        with seeded(backbone.device, 0):
            for step in range(section.total_steps):
                svi.step(*micro_batches(system, system.encoded("train"), section, step, ALONE))
        finish = METHODS[system.config.method.name].finish
        found = finish(what_is_fitted(system)) if finish is not None else {}
    except BaraError as error:
        return error
    state = [*system.model.state_dict().values(), *system.guide.state_dict().values()]
    fitted = torch.tensor([value for key, value in found.items() if "seconds" not in key])
    return [*state, fitted, *(draw(system, system.encoded("test"), samples, seed=0) for samples in (0, 2))]


def values(name: str, field: FieldInfo) -> list[Any]:
    """Return values of a setting that are not its default."""
    if name == "guide":
        return [one for one in FAMILIES if one != field.get_default()]
    if name in TELLING:
        return [TELLING[name]]
    default = field.get_default()
    return [one for one in candidates(field.annotation, default) if one not in (default, None)]


def modes(method: str) -> Iterator[dict[str, Any]]:
    """Yield choices of a method: none, and each value of what has a few, by itself."""
    yield {}
    if method == "bara":
        yield from GATES
    for name, field in METHODS[method].config.model_fields.items():
        found = values(name, field)
        if (
            name not in ("name", "guide", "latent")
            and found
            and all(isinstance(v, str | bool) for v in found)
        ):
            yield from ({name: value} for value in found)


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def matters(name: str, before: list[Tensor], after: Iterable[Outcome]) -> bool:
    """Whether a setting changed what is learnt, or every value of it was refused by its name.

    That some values are refused says little: of a number out of range, also where nothing reads it.
    """
    refused = True
    for found in after:
        if isinstance(found, TrainingError) or not (isinstance(found, BaraError) or equal(before, found)):
            return True
        refused &= isinstance(found, BaraError) and name in str(found)
    return refused


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name != "bara-gate"])
def test_every_setting_matters_or_is_refused(method: str, here: Place, backbone: Backbone) -> None:
    pytest.importorskip("ivon" if method == "ivon" else "torch")
    fields = METHODS[method].config.model_fields
    for mode in modes(method):
        base = {"method.name": method, **{f"method.{key}": value for key, value in mode.items()}}
        before = outcome(here, backbone, base)
        if isinstance(before, BaraError):  # a choice that needs another one
            assert any(key in str(before) for key in mode), (method, mode, before)
            continue
        tried = {f"method.{name}": values(name, field) for name, field in fields.items()}
        if not mode or "recipe" in mode:
            tried |= {key: [value] for key, value in TRAINING.items()}
        for key, some in tried.items():
            name = key.partition(".")[2]
            if name in ("name", *mode):
                continue
            after = (outcome(here, backbone, base | {key: value}) for value in some)
            assert matters(name, before, after), (
                f"{method} with {mode or 'its defaults'} ignores {key}: {some}"
            )


@pytest.mark.parametrize(
    ("settings", "unread"),
    [
        ({"method": "bara", "method.guide": "delta"}, {"method.init_kappa": 0.3}),
        ({"method": "bara", "method.latent": "phi"}, {"method.activation": "relu"}),
        ({"method": "blob", "method.recipe": "reproduction"}, {"method.beta": 0.5}),
        ({"method": "scalabl", "method.recipe": "reproduction"}, {"method.beta": 0.5}),
        ({"method": "clora", "method.recipe": "reproduction"}, {"method.beta": 0.5}),
        ({"method": "laplace", "method.subset": "last"}, {"method.tokens": "sum"}),
    ],
)
def test_what_nothing_reads_is_refused(settings: dict[str, Any], unread: dict[str, Any]) -> None:
    load_config(overrides=settings)
    (key,) = unread
    with pytest.raises(ConfigError, match=rf"{key}=.* has no effect with method\.") as refused:
        load_config(overrides=settings | unread)
    assert len(str(refused.value)) <= 200


def test_a_stored_run_keeps_what_nothing_reads(place: Place, tmp_path: Path) -> None:
    """One of an older version, which wrote down a noise level for a point mass, can be read and go on."""
    system = build_system(place.config(method="bara", method__guide="delta", train__steps=1))
    assert system.config.method.init_kappa is None
    method = system.config.method.model_copy(update={"init_kappa": 0.5})
    older = system.with_config(system.config.model_copy(update={"method": method}))
    train(older, tmp_path)
    assert load_system(tmp_path).config == older.config
    started, again = resumed(tmp_path, None, {}, [])
    assert started == again == older.config


def test_what_nothing_reads_is_refused_upon_a_base_too() -> None:
    base = load_config(overrides={"method": {"name": "bara", "guide": "delta"}})
    for given in ({"overrides": {"method.init_kappa": 0.5}}, {"assignments": ["method.init_kappa=0.5"]}):
        with pytest.raises(ConfigError, match=r"init_kappa=0.5 has no effect with method\.guide=delta"):
            load_config(base=base, **given)
    older = base.model_copy(update={"method": base.method.model_copy(update={"init_kappa": 0.5})})
    assert load_config(base=older, overrides={"seed": 7}).method == older.method
