"""docs/results.md: from committed files only, the same each time, with every section that there is."""

import re
import shutil
from pathlib import Path
from statistics import mean, stdev

import pytest
from study_cases import invent, rows_of

from bara_pyro.errors import DataError
from bara_pyro.runs.atomic import write_json
from bara_pyro.untrusted.files import read_json
from experiments.engine.compare import Comparisons, compare_study, write_comparisons
from experiments.engine.job import Job
from experiments.engine.provenance import code_state, in_words
from experiments.engine.record import write_records
from experiments.engine.results import RESULTS, Results
from experiments.engine.rows import collect
from experiments.engine.study import load_study, write_study
from experiments.engine.sweep import sweep
from experiments.page import report
from experiments.page.report import claims, headline, listed, page, pages, problems
from experiments.page.spec import find_study
from experiments.page.template import Renderer

OLD = ("demo", "lr_sweep_micro-wgs", "lr_sweep_ag_news", "real_rows")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    tasks = {"micro-wgs": 80, "micro-arce": 60}
    rows = rows_of({task: (count, 2) for task, count in tasks.items()}, seeds=3)
    found = compare_study(rows, Comparisons(choices=folder / "none.json"))
    invent("in_distribution", folder / "results", tasks=tasks, comparisons=found)
    one = {"micro-obqa": 60}
    invent("out_of_distribution", folder / "results", tasks=one, shifted=("micro-near", "micro-far"))
    for name in ("prior_sensitivity", "prior_sensitivity_strong"):
        arms = [f"bara, Gamma({a}, 1)" for a in (1, 2)]
        invent(name, folder / "results", arms=arms, tasks=tasks, seeds=2)
    invent(
        "backbones",
        folder / "results",
        arms=["lora, big", "bara, big", "lora, small", "bara, small"],
        tasks=one,
    )
    invent("something_new", folder / "results", tasks=one, seeds=1)
    lora = {"memory": 2.0, "step": 0.5, "point": 1.0}
    costs = {**lora, "parameters": 10, "draws": 3.0, "lora": lora}
    measured = {"lora": costs, "bara": {**costs, "step": 0.75, "draws": 8.0}, "ivon": {"failed": "no"}}
    about = {"device": "cpu", "dtype": "float32", "rounds": 20, "size": "896"}
    about["environment"] = {"gpu": None, "machine": "x86_64"}
    entries = {f"896 cpu {method}": {"method": method, **about, **c} for method, c in measured.items()}
    Results(folder / "results" / "efficiency.json", "efficiency", {}, entries).write()
    for name in OLD:
        shutil.copy(RESULTS / f"{name}.json", folder / "results")
    return folder / "results"


@pytest.fixture(scope="module")
def written(results: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Path]:
    figures = tmp_path_factory.mktemp("docs") / "figures"
    return pages(Renderer(results), figures, figures), figures  # a folder without answers


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ .*$", text, flags=re.MULTILINE)


def test_a_page_a_file_and_an_index_in_order(written: tuple[dict[str, str], Path]) -> None:
    texts, _ = written
    assert list(texts) == [
        "index",
        "in_distribution",
        "out_of_distribution",
        "backbones",
        "prior_sensitivity",
        "prior_sensitivity_strong",
        "efficiency",
        "lr_sweep_ag_news",
        "lr_sweep_micro-wgs",
        "real_rows",
        "demo",
    ]  # something_new is no study
    assert re.findall(r"\(results/(.*?)\.md\)", texts["index"]) == list(texts)[1:]
    assert headings(texts["in_distribution"]) == ["# Main table: methods by tasks", "### Differences"]
    assert headings(texts["prior_sensitivity_strong"]) == ["# Prior sensitivity: strong", "### BaRA"]
    assert headings(texts["backbones"]) == ["# Backbones", "### big", "### small"]
    main = texts["in_distribution"].replace("\n", " ")
    assert "1,000 training steps; 3 seeds; S = 0 and 10; 0.17 core-hours." in main  # 18 runs of 33 s
    assert "Incomplete" not in main
    assert "Code behind the results: before provenance was recorded (18)." in main


def test_the_same_files_give_the_same_bytes(
    results: Path, written: tuple[dict[str, str], Path], tmp_path: Path
) -> None:
    texts, figures = written
    assert pages(Renderer(results), tmp_path, tmp_path / "figures") == texts
    drawn = sorted(path.name for path in figures.iterdir())
    assert drawn == [
        "demo-reliability.svg",
        "in_distribution-accuracy-ece.svg",
        "in_distribution-nll-differences.svg",
        "in_distribution-reliability.svg",
        "in_distribution-risk-coverage.svg",
    ]
    assert all((figures / n).read_bytes() == (tmp_path / "figures" / n).read_bytes() for n in drawn)


def test_every_figure_is_there_and_has_a_text(written: tuple[dict[str, str], Path]) -> None:
    texts, figures = written
    pictures = re.findall(r"!\[(.*?)\]\(\.\./figures/(.*?)\)", texts["in_distribution"])
    assert len(pictures) == 4
    for text, name in pictures:
        assert len(text) > 40
        assert (figures / name).stat().st_size < 150_000
    assert "ECE (%): MLE (LoRA) " in texts["in_distribution"]


def test_answers_stand_before_the_tables_and_in_the_index(results: Path, tmp_path: Path) -> None:
    (tmp_path / "out_of_distribution").mkdir()
    answer = '**Far is {{ out_of_distribution.mean("acc", "bara") | f1 }}.** More.\n'
    (tmp_path / "out_of_distribution" / "answer.md").write_text(answer)
    texts = pages(Renderer(results), tmp_path)
    study = load_study("out_of_distribution", results)
    accuracy = mean(r["metrics"]["10"]["acc"] for r in study.arms["bara"]["micro-obqa"].values())
    text = texts["out_of_distribution"]
    said = text.index(f"**Far is {accuracy:.1f}.** More.")
    assert text.index("S = 0 and 10;") < said < text.index("| method")
    assert f"[Shifts](results/out_of_distribution.md): Far is {accuracy:.1f}.\n" in texts["index"]


def test_files_that_differ_by_a_number_share_an_answer(results: Path, tmp_path: Path) -> None:
    results = shutil.copytree(results, tmp_path / "results")
    for name in ("_1", "_2", "_few"):
        shutil.copy(results / "out_of_distribution.json", results / f"out_of_distribution{name}.json")
    (tmp_path / "out_of_distribution").mkdir()
    for name, answer in (("", "**Shared, {{ here.tasks | length }} task.**"), ("_2", "**Its own.**")):
        (tmp_path / "out_of_distribution" / f"answer{name}.md").write_text(answer)
    texts = pages(Renderer(results), tmp_path)
    assert "**Shared, 1 task.**" in texts["out_of_distribution_1"]
    assert "**Its own.**" in texts["out_of_distribution_2"]
    assert "(results/out_of_distribution.md): Shared, 1 task., [1](results/" in texts["index"]
    assert "2](results/out_of_distribution_2.md): Its own.\n" in texts["index"]
    assert "**" not in texts["out_of_distribution_few"].split("| method")[0]


def test_costs_are_ratios(written: tuple[dict[str, str], Path]) -> None:
    lines = written[0]["efficiency"].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == ["lora", "bara"]
    assert rows[1][1:] == ["10", "1.50", "1.00", "1.00", "8.0"]


def test_what_is_incomplete_is_said(tmp_path: Path) -> None:
    runs = invent("parameter_budget", tmp_path, tasks={"t": 40}, seeds=2)
    path = tmp_path / "records" / f"{runs[1]['hash']}.json"
    record = read_json(path)
    kept = ("schema", "kind", "config_hash", "settings", "config", "method", "task", "split", "seed", "steps")
    write_json(path, {key: record[key] for key in kept} | {"failed": "The loss is not finite."})
    text = pages(Renderer(tmp_path), tmp_path)["parameter_budget"]
    assert "Incomplete: BLoB on t has 1 of 2 seeds: The loss is not finite." in text.replace("\n", " ")
    assert "| BLoB | 23,616 | failed 1/2 |" in text


def test_a_missing_record_is_named(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "results")
    gone = next(iter((tmp_path / "results" / "records").glob("*.json")))
    gone.unlink()
    with pytest.raises(DataError, match=rf"The record .*{gone.name} of .* cannot be read: repeat the study"):
        pages(Renderer(tmp_path / "results"), tmp_path)


def test_real_runs_go_all_the_way(base: dict, shifted: str, tmp_path: Path) -> None:
    jobs = [
        Job({**base, "method": method, "seed": s}, (shifted,)) for method in ("lora", "bara") for s in (0, 1)
    ]
    records = sweep(jobs, tmp_path / "runs", launcher="serial", strict=True)
    write_records(records, tmp_path / "results" / "records")
    runs = [
        {"hash": r["config_hash"], "arm": r["method"], "task": r["task"], "seed": r["seed"]} for r in records
    ]
    results = tmp_path / "results"
    for name, tested_on in (("in_distribution", ()), ("out_of_distribution", (Path(shifted).name,))):
        write_study(name, runs, {}, folder=results)
        assert collect(name, tmp_path / "runs", results=results)[1] == []
        assert write_comparisons(name, Comparisons(tested_on=tested_on), results)
    texts = pages(Renderer(tmp_path / "results"), tmp_path, tmp_path / "figures")
    bara = [r["metrics"]["3"]["acc"] for r in records if r["method"] == "bara"]
    lines = texts["in_distribution"].splitlines()
    row = next(line for line in lines if re.match(r"\| BaRA \| [\d,]+ \| 3 \|", line))
    assert f"{mean(bara):.1f} ± {stdev(bara):.1f}" in row
    assert "shifted.jsonl" in texts["out_of_distribution"]
    assert f"Code behind the results: {in_words(code_state())} (4)." in texts["in_distribution"]


def test_no_run_finished(tmp_path: Path) -> None:
    write_study("in_distribution", [], {}, folder=tmp_path)
    study = load_study("in_distribution", tmp_path)
    assert "No run finished." in page("Main table", find_study("in_distribution"), study, "", None)


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


@pytest.mark.slow
def test_the_committed_pages_are_those_of_the_committed_files() -> None:
    assert problems() == []


def test_pages_of_one_template_are_listed_by_its_comment(tmp_path: Path) -> None:
    (tmp_path / "answer_few.md").write_text("{# After 80 rows #}\n{% set c = here %}\n**It does.**\n")
    (tmp_path / "answer.md").write_text("**It does.**\n")
    found = [listed(tmp_path / name) for name in ("answer_few.md", "answer.md", "answer_none.md")]
    assert found == ["After 80 rows: ", "", ""]


def test_a_headline_has_intervals_without_the_parts_of_their_errors() -> None:
    said = "**It does: by +1.2 [+0.9, +1.5] (SE 0.1 by seeds, 0.1 by rows) points (3 seeds).** More.\n\nLess."
    assert headline(said) == "It does: by +1.2 [+0.9, +1.5] points (3 seeds)."
