"""Figures in words: taken from results; a figure that is not there, or was typed, is an error."""

import doctest
from pathlib import Path
from statistics import mean, stdev

import pytest
from study_cases import invent

from bara_pyro.errors import DataError
from experiments.engine import tables, values
from experiments.engine.results import Results, load_study
from experiments.page import overview, report, template
from experiments.page.report import typed_numerals
from experiments.page.template import Arms, Renderer


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    invent("untuned", folder)
    entries = {f"{m} {s}": {"method": m, "seed": s, "kept": {"0.01": 10 + s}} for m in "ab" for s in (0, 2)}
    Results("pruning", folder, {"rows": 5}, entries).write()
    return folder


def rendered(results: Path, tmp_path: Path, source: str) -> str:
    (tmp_path / "x.md").write_text(source)
    return Renderer(results).text(tmp_path / "x.md")


def test_scores_of_arms(results: Path, tmp_path: Path) -> None:
    records = load_study("untuned", results).arms["bara"]
    by_seed = [mean(records[task][s]["metrics"]["10"]["nll"] for task in records) for s in (0, 1, 2)]
    source = (
        '{{ untuned.value("nll", "bara") | pm3 }}, {{ untuned.mean("nll", "bara", "micro-wgs", 0) | f2 }}'
    )
    at_zero = mean(r["metrics"]["0"]["nll"] for r in records["micro-wgs"].values())
    expected = f"{mean(by_seed):.3f} ± {stdev(by_seed):.3f}, {at_zero:.2f}"
    assert rendered(results, tmp_path, source) == expected
    threads = '{{ untuned.mean("environment/threads", "bara") | f0 }}'
    assert rendered(results, tmp_path, threads) == "1"


def test_ranks(results: Path) -> None:
    view = Arms(load_study("untuned", results))
    assert sorted(view.rank("nll", arm) for arm in view.arms) == [1, 2, 3]
    assert view.rank("nll", min(view.arms, key=lambda arm: view.mean("nll", arm))) == 1


def test_entries(results: Path, tmp_path: Path) -> None:
    source = '{{ pruning.mean("kept/0.01", method="a") | f0 }} {{ pruning["b 2"].kept["0.01"] }}'
    assert rendered(results, tmp_path, source) == "11 12"


def test_results_of_a_retired_study_can_be_named(results: Path, tmp_path: Path) -> None:
    Results("gone", results, {}, {"a": {"nll": 0.5}}).write()
    assert rendered(results, tmp_path, '{{ gone["a"].nll | f2 }} {{ gone.mean("nll") | f1 }}') == "0.50 0.5"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ pruning.nothing }}", "nothing"),
        ("{{ regret }}", "regret"),
        ('{{ untuned.mean("nll", "nobody") }}', "no arm 'nobody'"),
        ('{{ untuned.mean("x/y", "bara") }}', "There is no 'x/y'"),
        ('{{ pruning.mean("kept/0.01", method="z") }}', "No entry"),
        ('{{ pruning.mean("kept/7", method="a") }}', "There is no 'kept/7'"),
        ('{{ untuned.versus("lora", "bara") }}', "no comparison of bara with lora"),
        ("{{ 1 ", "end of print"),
    ],
)
def test_what_is_not_there_is_an_error(source: str, said: str, results: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        rendered(results, tmp_path, source)


@pytest.mark.parametrize("text", ["It has 75.0.", "by 44 % of it", "by -0.016", "3 points", "a\n1,234.5"])
def test_typed_results_are_found(text: str) -> None:
    assert len([*typed_numerals(text, Path("a.md"))]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "In 2026, three seeds of 1,000 steps at r = 8.",
        "At `lr 0.1` with `Gamma(0.5, 1)`.",
        "See [the paper](x-1.2.md), arXiv 2606.29184, on Qwen2.5-7B.",
        '{{ x.row(0, share="0.01") | f1 }} % {% set y = 0.5 %}',
    ],
)
def test_settings_names_and_templates_are_no_typed_results(text: str) -> None:
    assert [*typed_numerals(text, Path("a.md"))] == []


def test_examples_in_docstrings() -> None:
    modules = (overview, report, tables, template, values)
    assert not any(doctest.testmod(module).failed for module in modules)
