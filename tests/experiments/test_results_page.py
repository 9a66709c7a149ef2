"""docs/results.md: from committed files only, the same each time, with every section that there is."""

import re
import shutil
from pathlib import Path
from statistics import mean, stdev
from xml.etree import ElementTree

import pytest
from study_cases import invent, rows_of

from bara_pyro.errors import DataError
from experiments.engine.differences import METRICS, Comparisons, compare_study, recompute, write_comparisons
from experiments.engine.provenance import code_state, in_words
from experiments.engine.record import IDENTITY
from experiments.engine.results import changing, load_study, read_results, results_path, write_study
from experiments.engine.rows import collect, rows_path, write_rows
from experiments.engine.sweep import Run, sweep
from experiments.engine.tables import CORRECTED, UNCORRECTED, arms_table
from experiments.page import overview, report
from experiments.page.report import claims, page, pages, problems
from experiments.page.spec import find_study
from experiments.page.template import Renderer


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    tasks = {"micro-wgs": 80, "micro-arce": 60}
    rows = rows_of({task: (count, 2) for task, count in tasks.items()}, seeds=3)
    found = compare_study(rows, Comparisons())
    invent("in_distribution", folder / "results", tasks=tasks, comparisons=found)
    invent("untuned", folder / "results", tasks={"micro-obqa": 60})
    return folder / "results"


def test_answers_stand_before_the_tables_and_in_the_index(results: Path, tmp_path: Path) -> None:
    (tmp_path / "untuned").mkdir()
    answer = '**It is {{ untuned.mean("acc", "bara") | f1 }}.** More.\n'
    (tmp_path / "untuned" / "answer.md").write_text(answer)
    texts = pages(Renderer(results), tmp_path)
    study = load_study("untuned", results)
    accuracy = mean(r["metrics"]["10"]["acc"] for r in study.arms["bara"]["micro-obqa"].values())
    text = texts["untuned"]
    said = text.index(f"**It is {accuracy:.1f}.** More.")
    assert said < text.index("| method") < text.index("S = 0 and 10;")
    title = find_study("untuned").title
    assert f"| [{title}](results/untuned.md) | It is {accuracy:.1f}. |\n" in texts["index"]
    assert [*texts] == ["index", "untuned"]  # what has no answer has no page


def test_a_retired_page_is_listed_and_stays_as_it_is(results: Path, tmp_path: Path) -> None:
    page = "# Is it?\n\n**No: it is 1.2.** More.\n\n`git show 0123abcd:experiments/studies/gone/study.py`\n"
    (tmp_path / "gone.md").write_text(page)
    (tmp_path / "other.md").write_text("# Written\n\nBy the report.\n")
    retired = report.pages_by_hand(tmp_path)
    texts = pages(Renderer(results), tmp_path, None, retired)
    assert (retired, texts["gone"]) == ({"gone": page}, page)
    assert "| [Is it?](results/gone.md) | No: it is 1.2. |" in texts["index"]


def test_the_first_paragraph_stands_before_the_figure_and_the_rest_behind_the_table(
    results: Path, tmp_path: Path
) -> None:
    (tmp_path / "in_distribution").mkdir()
    (tmp_path / "in_distribution" / "answer.md").write_text("**First.**\n\n## What follows\n\nMore.\n")
    text = pages(Renderer(results), tmp_path)["in_distribution"]
    places = [text.index(part) for part in ("**First.**", "](../figures/", "| method", "## What follows")]
    assert places == sorted(places)
    assert text.count("](../figures/") == 1
    assert "    python -m experiments in_distribution\n" in text[places[-1] :]


def test_the_overview_draws_the_contrasts_that_are_stored(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: ("in_distribution", ("lora", name, "average"), -1) for name in ("bara", "nobody")}
    monkeypatch.setattr(overview, "PLACES", places)
    found = overview.contrasts(Renderer(results))
    [entry] = [
        e
        for e in load_study("in_distribution", results).comparisons
        if (e["arm"], e["reference"], e["task"]) == ("bara", "lora", "average")
    ]
    nll = entry["nll"]
    assert found == {"bara": {"difference": -nll["difference"], "low": -nll["high"], "high": -nll["low"]}}
    text = pages(Renderer(results), tmp_path, tmp_path)["index"]
    assert "(figures/overview.svg)" in text
    assert (tmp_path / "overview.svg").is_file()


def test_what_is_incomplete_is_said(tmp_path: Path) -> None:
    runs = invent("untuned", tmp_path, tasks={"t": 40}, seeds=2)
    with changing(results_path("untuned", tmp_path)) as store:
        record = store.records[runs[1]["hash"]]
        kept = {key: record[key] for key in ("schema", "kind", *IDENTITY)} | {
            "failed": "The loss is not finite."
        }
        store.records[runs[1]["hash"]] = kept
    spec = find_study("untuned")
    text = page("untuned", spec, load_study("untuned", tmp_path), "", None)
    assert "Incomplete: BLoB on t has 1 of 2 seeds: The loss is not finite." in text.replace("\n", " ")
    assert "| BLoB | 23,616 | failed 1/2 |" in text


def test_a_missing_record_is_named(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "results")
    with changing(results_path("in_distribution", tmp_path / "results")) as store:
        gone, _ = store.records.popitem()
    with pytest.raises(DataError, match=rf"The record {gone} of .* is not stored: repeat the study"):
        Renderer(tmp_path / "results").load("in_distribution")


def test_real_runs_go_all_the_way(base: dict, tmp_path: Path) -> None:
    own = [{**base, "method": method, "seed": s} for method in ("lora", "bara") for s in (0, 1)]
    records = [*sweep([Run(one, tmp_path / "runs") for one in own], launcher="serial").values()]
    runs = [
        {"hash": r["config_hash"], "arm": r["method"], "task": r["task"], "seed": r["seed"]} for r in records
    ]
    results = tmp_path / "results"
    write_study("untuned", runs, records, {}, folder=results)
    collect("untuned", tmp_path / "runs", results=results)
    assert write_comparisons("untuned", Comparisons(), results)
    (text,) = (path.read_text() for path in report.own_pages(tmp_path / "results"))
    bara = [r["metrics"]["3"]["acc"] for r in records if r["method"] == "bara"]
    row = next(line for line in text.splitlines() if line.startswith("| BaRA |"))
    assert f"{mean(bara):.1f} ± {stdev(bara):.1f}" in row
    assert f"made them: 4 by {in_words(code_state())}." in text


def test_no_run_finished(tmp_path: Path) -> None:
    write_study("in_distribution", [], [], {}, folder=tmp_path)
    study = load_study("in_distribution", tmp_path)
    assert "No run finished." in page("in_distribution", find_study("in_distribution"), study, "", None)


def test_claims_are_written_between_their_marks(results: Path, tmp_path: Path) -> None:
    (tmp_path / "lead.md").write_text('Right: {{ in_distribution.mean("acc", "lora") | f0 }} %.\n')
    readme = "A\n<!-- claims: lead -->\nold\n<!-- end -->\nB\n"
    path, render = tmp_path / "README.md", Renderer(results)
    once, names = claims(readme, path, render, tmp_path)
    assert re.fullmatch(r"A\n<!-- claims: lead -->\nRight: \d\d %\.\n<!-- end -->\nB\n", once)
    assert names == {"lead"}
    assert claims(once, path, render, tmp_path) == (once, names)
    with pytest.raises(DataError, match=r"README\.md have no <!-- end -->"):
        claims("A\n<!-- claims: lead -->\nold\n", path, render, tmp_path)
    with pytest.raises(DataError, match=r"no template other\.md"):
        claims("<!-- claims: other -->\n<!-- end -->\n", path, render, tmp_path)


def test_a_template_of_claims_that_stands_nowhere_is_refused(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "claims").mkdir()
    for name in ("lead", "lost"):
        (tmp_path / "claims" / f"{name}.md").write_text("Right.\n")
    (tmp_path / "README.md").write_text("<!-- claims: lead -->\n<!-- end -->\n")
    monkeypatch.setattr(report, "CLAIMS", tmp_path / "claims")
    monkeypatch.setattr(report, "CLAIMED", ("README.md",))
    with pytest.raises(DataError, match="stand nowhere: lost"):
        report.claimed(tmp_path, Renderer(results))


def told(path: Path) -> list[str | None]:
    """Return the names and values of the points of a figure."""
    return [title.text for title in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}title")]


@pytest.mark.slow
def test_the_committed_pages_and_figures_are_those_of_the_committed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        report, "pages", lambda render, answers, _, old: pages(render, answers, tmp_path, old)
    )
    assert problems() == []
    drawn = sorted(tmp_path.glob("*.svg"))
    assert len(drawn) == 4  # the overview, the demonstration and two studies
    assert [path.name for path in drawn if told(path) != told(report.ROOT / "docs/figures" / path.name)] == []


SIZES = {"micro-wgs": 60, "micro-arce": 50}


def with_rows(results: Path) -> None:
    invent("in_distribution", results, tasks=SIZES, seeds=2)
    rows = rows_of({task: (count, 2) for task, count in SIZES.items()})
    write_rows("in_distribution", rows, results)


def words(results: Path) -> str:
    return arms_table(load_study("in_distribution", results)).caption


def test_a_page_says_that_rows_are_missing(tmp_path: Path) -> None:
    with_rows(tmp_path)
    write_comparisons("in_distribution", Comparisons(), tmp_path)
    assert f"{CORRECTED}; the primary contrast (BaRA) is not corrected" in words(tmp_path)
    stored = read_results("in_distribution", tmp_path)
    for entry in stored.comparisons:  # as they were before rows were stored
        for metric in METRICS:
            entry[metric] = {key: entry[metric][key] for key in ("difference", "low", "high", "verdict")}
    stored.write()
    assert words(tmp_path).endswith(UNCORRECTED)


def test_intervals_are_computed_again_where_all_rows_are(tmp_path: Path) -> None:
    with_rows(tmp_path)
    found = write_comparisons("in_distribution", Comparisons(), tmp_path)
    line = f"in_distribution: {len(found)} comparisons, "
    assert recompute(tmp_path) == [f"{line}as stored"]
    stored = read_results("in_distribution", tmp_path)
    stored.comparisons[0]["nll"]["difference"] += 1
    stored.write()
    assert recompute(tmp_path) == [f"{line}changed"]
    assert read_results("in_distribution", tmp_path).comparisons == found
    rows_path("in_distribution", tmp_path).unlink()
    (line,) = recompute(tmp_path)
    assert line == "in_distribution: not recomputed, the rows of 12 runs are not stored"
