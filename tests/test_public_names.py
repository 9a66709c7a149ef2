"""What `import bara_pyro as bp` offers: all of it loads, nothing else is there, and importing stays quick."""

import ast
import gc
import re
import subprocess
import sys
import warnings
from collections import Counter
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, resolve_name
from types import ModuleType

import pytest
from core_cases import backbone

import bara_pyro as bp
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.errors import ConfigError
from bara_pyro.lazy import uncollected
from bara_pyro.moved import KEPT, MOVED, OPTIONS, REMOVED, RENAMED
from bara_pyro.posthoc.corrections import CORRECTIONS

ROOT = Path(__file__).parents[1]
LAZY = [bp, bp.models, bp.guides]
NEEDS = {
    "bara_pyro.extras.hub.peft": "peft",
    "bara_pyro.extras.hub.trainer": "accelerate",
    "bara_pyro.extras.lmeval": "lm_eval",
    "bara_pyro.extras.serve": "fastapi",
}
"""Module of a room -> package that it needs."""
REQUIRED = {"GaussianLoRA": {"random": "A", "prior_scale": 0.1}, "PosthocLoRA": {"random": "A"}}
"""Arguments that a model has no default for."""


def python(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
def test_a_package_offers_its_names_and_no_others(package: ModuleType) -> None:
    assert dir(package) == package.__all__ == sorted(set(package.__all__))
    for name in package.__all__:
        thing = getattr(package, name)
        assert thing.__name__.rpartition(".")[2] == name  # called what it is called where it is defined
        assert getattr(package, name) is thing


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
def test_no_name_is_hidden_by_a_module(package: ModuleType) -> None:
    """A submodule of the same name would replace a public name as soon as anything imports it."""
    modules = {module.name for module in iter_modules(package.__path__)}
    hidden = modules & {
        name for name in package.__all__ if not isinstance(getattr(package, name), ModuleType)
    }
    assert not hidden


@pytest.mark.parametrize(("package", "base"), [(bp.models, AdaptedLM), (bp.guides, SiteGuide)])
def test_every_program_and_guide_is_offered(package: ModuleType, base: type) -> None:
    defined = {
        name
        for module in iter_modules(package.__path__, f"{package.__name__}.")
        for name, one in vars(import_module(module.name)).items()
        if isinstance(one, type) and issubclass(one, base) and one.__module__ == module.name
    }
    assert defined <= set(package.__all__)


@pytest.mark.slow
def test_importing_it_loads_nothing_heavy() -> None:
    """In a process of its own: in this one torch has been imported."""
    heavy = "{'torch', 'transformers', 'pyro', 'numpy', 'pandas', 'datasets', 'pydantic'} & {*sys.modules}"
    assert python(f"import sys, bara_pyro as bp; dir(bp); print(*{heavy})") == ""
    assert python(f"import sys, bara_pyro as bp; bp.models, bp.guides; print(*{heavy})") == ""
    assert "torch" in python(f"import sys, bara_pyro as bp; bp.models.BaRA; print(*{heavy})")


@pytest.mark.parametrize("frozen", [False, True])
def test_what_an_import_makes_is_old_to_the_collector(frozen: bool) -> None:
    """Else its next collection, of young objects, would look through all of torch and transformers."""
    gc.unfreeze()
    try:
        if frozen:
            gc.freeze()
        count = gc.get_freeze_count()
        with uncollected(), uncollected():
            made: list[object] = []
        assert gc.isenabled()
        assert gc.get_freeze_count() == count
        assert any(one is made for one in gc.get_objects(generation=2)) is not frozen
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    ("package", "name", "near"),
    [
        (bp, "trian", ": did you mean 'train'?"),
        (bp, "loadtask", ": did you mean 'load_task'?"),
        (bp.models, "Bara", ": did you mean 'BaRA'?"),
        (bp.guides, "WeibulGuide", ": did you mean 'WeibullGuide'"),
        (bp, "zzz", "$"),
    ],
)
def test_an_unknown_name_is_told_the_near_ones(package: ModuleType, name: str, near: str) -> None:
    says = f"module '{package.__name__}' has no attribute '{name}'"
    with pytest.raises(AttributeError, match=re.escape(says) + (near if near == "$" else re.escape(near))):
        getattr(package, name)


def test_what_pages_and_examples_use_is_there() -> None:
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    files += [
        path for folder in ("bara_pyro", "examples", "experiments") for path in (ROOT / folder).rglob("*.py")
    ]
    used = {
        name: path.name
        for path in files
        for name in re.findall(r"(?<![\w.])bp\.([A-Za-z_]+)", path.read_text(encoding="utf-8"))
    }
    assert "train" in used
    assert {name: path for name, path in used.items() if name not in bp.__all__} == {}


def module(name: str) -> ModuleType:
    """The module, if what its room needs is installed."""
    for room, package in NEEDS.items():
        if name.startswith(room):
            pytest.importorskip(package)
    return import_module(name)


def said_by(statement: str) -> list[str]:
    """The DeprecationWarnings that a statement of a user's file gets."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        exec(statement, {})
    kinds = (one for one in said if issubclass(one.category, DeprecationWarning))
    return [str(one.message) for one in kinds if one.filename == "<string>"]


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_what_moved_is_found_under_its_old_name(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = module(new)
    monkeypatch.delitem(sys.modules, old, raising=False)
    sentence = f"{old} is now {new}: the old name goes with the next version."
    assert [one for one in said_by(f"import {old}") if old in one] == ([] if old in KEPT else [sentence])
    assert import_module(old) is now
    assert now.__spec__.name == now.__name__ == new


def test_what_is_in_a_room_that_moved_is_there_once() -> None:
    from bara_pyro.extras.replies.generation.decoding import Decoding

    assert import_module("bara_pyro.generation.decoding").Decoding is Decoding
    with pytest.raises(ModuleNotFoundError, match=r"bara_pyro\.extras\.replies\.generation\.nothing"):
        import_module("bara_pyro.generation.nothing")


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_renamed_or_moved_name_is_found_and_the_new_one_said(old: str, new: str) -> None:
    (place, _, name), (now, _, attribute) = old.rpartition("."), new.rpartition(".")
    assert name not in vars(module(place))  # an old name hides nothing
    wanted = vars(module(now))[attribute]
    sentence = f"{old} is now {new}: the old name goes with the next version."
    assert set(said_by(f"from {place} import {name}")) == {sentence}
    assert getattr(import_module(place), name) is wanted
    with pytest.raises(AttributeError, match=rf"module '{place}' has no attribute 'nothing'"):
        import_module(place).nothing  # noqa: B018


@pytest.mark.parametrize(
    "old",
    [
        "core.frozen.frozen",
        "core.laws.transport",
        "core.program.by_module",
        "harness.laws.check_law",
        "metrics.selective.aurc",
        "runs.rehearsal.fit_rehearsed",
    ],
)
def test_a_name_is_found_where_it_was(old: str) -> None:
    """Also in a module that moved or was merged into another, and under a name that changed since."""
    place, _, name = f"bara_pyro.{old}".rpartition(".")
    module(MOVED.get(place, place))
    assert callable(getattr(import_module(place), name))


def test_a_removed_name_is_explained_where_it_was() -> None:
    with pytest.raises(ImportError, match=r"^fit_distance was removed: use bara_pyro\.posthoc\.corrections"):
        from bara_pyro.core.fit_distance import fit_distance  # noqa: F401


def test_a_removed_module_is_explained_too() -> None:
    for statement in ("import bara_pyro.data.preferences", "from bara_pyro.data.preferences import Pair"):
        with pytest.raises(ImportError, match=r"^preferences was removed: .*trl\.RewardTrainer"):
            exec(statement, {})


def test_no_module_has_the_old_name_of_another() -> None:
    for old in MOVED:
        path = ROOT / old.replace(".", "/")
        assert not path.with_suffix(".py").exists()
        assert not (path / "__init__.py").exists()


@pytest.mark.parametrize(("old", "instead"), REMOVED.items())
def test_a_removed_name_says_what_to_use_instead(old: str, instead: str) -> None:
    place, _, name = old.rpartition(".")
    with pytest.raises(ImportError, match=re.escape(f"{name} was removed: {instead}.")):
        exec(f"from {place} import {name}", {})
    with pytest.raises(ImportError, match=re.escape(f"{name} was removed: {instead}.")):
        getattr(import_module(place), name)


@pytest.mark.parametrize("instead", [*REMOVED.values(), *OPTIONS.values()])
def test_what_to_use_instead_is_there(instead: str) -> None:
    for name in re.findall(r"(?:bara_pyro|bp)[.\w]+\w", instead):
        assert resolve_name(re.sub("^bp", "bara_pyro", name))
    kinds = {kind.option for kind in CORRECTIONS}
    assert set(re.findall(r"(\w+)=True", instead)) <= kinds


@pytest.mark.parametrize("name", bp.models.__all__)
def test_a_model_refuses_removed_options(name: str) -> None:
    create = partial(getattr(bp.models, name), backbone(), 4, **REQUIRED.get(name, {}))
    for option, instead in OPTIONS.items():
        with pytest.raises(ConfigError, match=f"^{option} is no longer an option of a model: ") as caught:
            create(**{option: True})
        assert str(caught.value).endswith(f": {instead}.")
        assert len(str(caught.value)) <= 200
    with pytest.raises(TypeError, match="'nothing'"):
        create(nothing=True)
    assert create(r=2).r > 0


def test_no_public_class_name_is_defined_twice() -> None:
    rooms = ("bara_pyro", "models", "guides", "experiments")
    files = {path.resolve() for room in rooms for path in (ROOT / room).rglob("*.py")}
    names = Counter(
        node.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()
