"""docs/results.md: from committed files only, the same each time, with every section that there is."""

import re
import shutil
from pathlib import Path
from statistics import mean, stdev

import pytest
from study_cases import invent

from bara_pyro.errors import DataError
from bara_pyro.runs.store import read_json, write_json
from experiments.engine.compare import compare_study
from experiments.engine.record import write_records
from experiments.engine.results import RESULTS
from experiments.engine.study import write_study
from experiments.engine.sweep import Job, sweep
from experiments.page import report
from experiments.page.report import write_report
from experiments.studies.efficiency.study import ratios

OLD = ("demo", "lr_sweep_micro-wgs", "lr_sweep_ag_news", "selected", "real_rows")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    tasks = {"micro-wgs": 80, "micro-arce": 60}
    runs = invent("in_distribution", folder / "results", folder / "runs", tasks=tasks)
    found = compare_study(runs, folder / "runs", ["lora", "blob"])
    invent("in_distribution", folder / "results", tasks=tasks, comparisons=found)
    shutil.rmtree(folder / "runs")
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
    found = {"lora": costs, "bara": {**costs, "step": 0.75, "draws": 8.0}, "ivon": {"failed": "no"}}
    about = {"device": "cpu", "dtype": "float32", "rounds": 20, "size": "896"}
    environment = {"gpu": None, "machine": "x86_64"}
    write_json(
        folder / "results" / "efficiency.json",
        {"896 cpu": {**about, "environment": environment, "methods": found}},
    )
    for name in OLD:
        shutil.copy(RESULTS / f"{name}.json", folder / "results")
    return folder / "results"


@pytest.fixture
def page(results: Path, tmp_path: Path) -> str:
    return write_report(results, tmp_path).read_text()


def headings(page: str) -> list[str]:
    return re.findall(r"^##+ .*$", page, flags=re.MULTILINE)


def test_sections_in_their_order_and_earlier_studies_last(page: str) -> None:
    assert headings(page) == [
        "## Main table: methods by tasks",
        "### Differences",
        "## Shifts",
        "## Backbones",
        "### big",
        "### small",
        "## Prior sensitivity",
        "### BaRA",
        "## Prior sensitivity strong",
        "### BaRA",
        "## Something new",
        "## Cost",
        "## Earlier studies",
        "### The demonstration",
        "### Learning rates, before and after the mend (micro-wgs)",
        "### Learning rates, before and after the mend (ag_news)",
        "### Each method at the learning rate that validation chose",
        "### Real rows, a real language model",
    ]
    assert "1,000 training steps; 3 seeds; S = 0 and 10." in page.replace("\n", " ")
    assert "Incomplete" not in page


def test_the_same_files_give_the_same_bytes(results: Path, tmp_path: Path) -> None:
    def files(folder: Path) -> dict[str, bytes]:
        write_report(results, folder)
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    first = files(tmp_path / "a")
    assert files(tmp_path / "b") == first
    assert sorted(first) == [
        "figures/in_distribution-accuracy-ece.png",
        "figures/in_distribution-nll-differences.png",
        "figures/in_distribution-reliability.png",
        "figures/in_distribution-risk-coverage.png",
        "results.md",
    ]


def test_every_figure_is_there_and_has_a_text(page: str, tmp_path: Path) -> None:
    pictures = re.findall(r"!\[(.*?)\]\((.*?)\)", page)
    assert len(pictures) == 4
    for text, path in pictures:
        assert len(text) > 40
        assert (tmp_path / path).stat().st_size < 150_000
    assert "ECE (%): MLE (LoRA) " in page


def test_answers_stand_before_the_tables(results: Path, tmp_path: Path) -> None:
    for name, text in {
        "out_of_distribution": "Far shifts are *hard*.\n",
        "efficiency": "It costs.\n",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "answer.md").write_text(text)
    page = write_report(results, tmp_path, tmp_path).read_text()
    section = page.split("## Shifts\n")[1]
    assert (
        section.index("S = 0 and 10.") < section.index("Far shifts are *hard*.") < section.index("| method")
    )
    assert page.split("## Cost\n")[1].index("It costs.") < page.split("## Cost\n")[1].index("| method")


def test_costs_are_ratios(page: str, results: Path) -> None:
    section = page.split("## Cost\n")[1].split("## Earlier")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    found = ratios(read_json(results / "efficiency.json")["896 cpu"]["methods"])
    assert [row[0] for row in rows] == ["lora", "bara"] == [row["method"] for row in found]
    assert rows[1][1:] == ["10", "1.50", "1.00", "1.00", "8.0"]


def test_sections_without_files_are_left_out(tmp_path: Path) -> None:
    invent("hierarchy", tmp_path / "results", arms=["bara, phi"], tasks={"t": 40}, seeds=1)
    page = write_report(tmp_path / "results", tmp_path).read_text()
    assert headings(page) == ["## Hierarchy of the gates", "### BaRA"]
    assert not (tmp_path / "figures").exists()


def test_what_is_incomplete_is_said(tmp_path: Path) -> None:
    runs = invent("parameter_budget", tmp_path / "results", tasks={"t": 40}, seeds=2)
    path = tmp_path / "results" / "records" / f"{runs[1]['hash']}.json"
    record = read_json(path)
    kept = ("schema", "kind", "config_hash", "settings", "config", "method", "task", "split", "seed", "steps")
    write_json(path, {key: record[key] for key in kept} | {"failed": "The loss is not finite."})
    page = write_report(tmp_path / "results", tmp_path).read_text()
    assert "Incomplete: BLoB on t has 1 of 2 seeds: The loss is not finite." in page.replace("\n", " ")
    assert "| BLoB | 23,616 | failed 1/2 |" in page


def test_a_missing_record_is_named(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "results")
    gone = next(iter((tmp_path / "results" / "records").glob("*.json")))
    gone.unlink()
    with pytest.raises(
        DataError, match=rf"The record .*{gone.name} of .* cannot be read: repeat the experiment\."
    ):
        write_report(tmp_path / "results", tmp_path)
    assert not (tmp_path / "results.md").exists()


def test_real_runs_go_all_the_way(base: dict, shifted: str, tmp_path: Path) -> None:
    jobs = [
        Job({**base, "method": method, "seed": s}, (shifted,)) for method in ("lora", "bara") for s in (0, 1)
    ]
    records = sweep(jobs, tmp_path / "runs", launcher="serial", strict=True)
    write_records(records, tmp_path / "results" / "records")
    runs = [
        {"hash": r["config_hash"], "arm": r["method"], "task": r["task"], "seed": r["seed"]} for r in records
    ]
    comparisons = compare_study(runs, tmp_path / "runs", choices=tmp_path / "none.json")
    for name in ("in_distribution", "out_of_distribution"):
        write_study(name, runs, {}, comparisons, tmp_path / "results")
    page = write_report(tmp_path / "results", tmp_path).read_text()
    assert headings(page) == [
        "## Main table: methods by tasks",
        "### Differences",
        "## Shifts",
        "### Differences",
    ]
    bara = [r["metrics"]["3"]["acc"] for r in records if r["method"] == "bara"]
    row = next(line for line in page.splitlines() if re.match(r"\| BaRA \| [\d,]+ \| 3 \|", line))
    assert f"{mean(bara):.1f} ± {stdev(bara):.1f}" in row
    assert "shifted.jsonl" in page


def test_no_run_finished(tmp_path: Path) -> None:
    write_study("in_distribution", [], {}, folder=tmp_path / "results")
    assert "No run finished." in write_report(tmp_path / "results", tmp_path).read_text()


def test_the_committed_page_is_that_of_the_committed_files(tmp_path: Path) -> None:
    assert write_report(RESULTS, tmp_path).read_text() == (report.DOCS / "results.md").read_text()
