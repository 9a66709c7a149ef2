"""`bara compare` on real runs: what it prints and writes, and what it refuses in a sentence."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence, register_surprise, write_rows
from huggingface_hub import ModelCard

from bara_pyro.api import evaluate
from bara_pyro.cli.running import run as train
from bara_pyro.cli.running import score_table
from bara_pyro.extras.hub.upload import prepare_upload
from bara_pyro.metrics import paired_bootstrap
from bara_pyro.untrusted.files import read_jsonl


@pytest.fixture(scope="module")
def groups(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainings of two seeds each, below a folder of their own."""
    folder = tmp_path_factory.mktemp("groups")
    for method in ("bara", "lora"):
        for seed in (0, 1):
            config = place.config(method=method, seed=seed, train__steps=8, predict__samples=[0, 3])
            train(config, folder / method / f"seed-{seed}")
    return folder


def probabilities(run: Path, samples: str = "3") -> list[list[float]]:
    return [row["probs"][samples] for row in read_jsonl(run / "predictions.jsonl")]


def test_what_is_printed_is_the_paired_bootstrap(groups: Path, bara: Bara) -> None:
    result = bara("compare", groups / "bara", groups / "lora", "--json")
    assert result.code == 0
    found = json.loads(result.out)
    sides = [
        torch.tensor(
            [probabilities(groups / method / f"seed-{seed}") for seed in (0, 1)], dtype=torch.float64
        ).log()
        for method in ("bara", "lora")
    ]
    labels = torch.tensor([row["label"] for row in read_jsonl(groups / "bara/seed-0/predictions.jsonl")])
    assert found["rows"] == len(labels)
    for line in found["metrics"]:
        expected = paired_bootstrap(line["metric"], *sides, labels, clusters=_ids(groups / "bara/seed-0"))
        assert (line["difference"], line["low"], line["high"]) == pytest.approx(
            (expected.difference, expected.low, expected.high), abs=1e-6
        )
    printed = bara("compare", groups / "bara", groups / "lora").out
    assert "2 seeds" in printed
    assert all(word in printed for word in ("accuracy", "ECE", "NLL", "Brier", "95 % interval"))


def test_a_new_metric_appears_wherever_there_are_scores(
    groups: Path, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One registration: it is evaluated, compared, and shown by the terminal, the model card and the page."""
    register_surprise(monkeypatch)
    metrics = evaluate(groups / "bara" / "seed-0")["metrics"]
    assert all(scores["surprise"] == pytest.approx(scores["nll"]) for scores in metrics.values())
    table = score_table([{"method": "bara", **metrics["3"]}])
    assert "surprise" in [column.heading for column in table.columns]
    found = json.loads(bara("compare", groups / "bara", groups / "lora", "--json").out)["metrics"]
    lines = {line["metric"]: line for line in found}
    assert lines["surprise"]["difference"] == pytest.approx(lines["nll"]["difference"])
    assert "surprise (nats)" in bara("compare", groups / "bara", groups / "lora").out
    run = shutil.copytree(groups / "bara" / "seed-0", tmp_path / "run")
    evaluate(run, out=run)
    nll = f"{metrics['3']['nll']:.2f}"
    model_card = prepare_upload(run, "someone/colours", tmp_path / "hub", base="a/b") / "README.md"
    scores = {line["draws S"]: line for line in markdown_table(model_card.read_text(), "| draws S |")}
    assert scores["3"]["surprise (nats)"] == nll
    published = {one.metric_name: one.metric_value for one in ModelCard.load(model_card).data.eval_results}
    assert published["surprise"] == pytest.approx(published["NLL"])
    assert bara("inspect", run, "--out", tmp_path / "page").code == 0
    inspection = json.loads((tmp_path / "page" / "inspection.json").read_text())
    assert inspection["scores"]["evaluated"][-1]["added"]["surprise"] == pytest.approx(metrics["3"]["nll"])
    tables = (tmp_path / "page" / "index.html").read_text().split("<table")
    assert [f">{nll}</td>" in one for one in tables if "surprise (nats)" in one] == [True]


def markdown_table(text: str, start: str) -> list[dict[str, str]]:
    """The rows of the table that starts with a heading, by heading."""
    lines = text[text.index(start) :].partition("\n\n")[0].splitlines()
    heading, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(heading, row, strict=True)) for row in rows]


def _ids(run: Path) -> list[str]:
    return [row["id"] for row in read_jsonl(run / "predictions.jsonl")]


def test_the_page_is_written_once(groups: Path, tmp_path: Path, bara: Bara) -> None:
    a, b = groups / "bara" / "seed-0", groups / "lora" / "seed-0"
    page = tmp_path / "compared.html"
    assert "Each side has one run" in bara("compare", a, b, "--page", page).out
    assert "<svg" in page.read_text()
    assert_one_sentence(bara("compare", a, b, "--page", page), "--overwrite")
    assert bara("compare", a, b, "--page", page, "--overwrite").code == 0
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine</p>")
    assert_one_sentence(bara("compare", a, b, "--page", mine, "--overwrite"), "was not written by bara")
    assert_one_sentence(bara("compare", a, b, "--page", a / "x.html"), "the input")
    assert_one_sentence(bara("compare", a, b, "--page", tmp_path / "x.pdf"), ".html")


def test_a_run_is_not_compared_with_itself(groups: Path, bara: Bara) -> None:
    run = groups / "lora/seed-0"
    for other in (run, run / ".." / "seed-0"):
        assert_one_sentence(bara("compare", run, other), "seed-0", "both sides")


def test_other_rows_and_draws_are_refused(groups: Path, place: Place, tmp_path: Path, bara: Bara) -> None:
    a = shutil.copytree(groups / "bara" / "seed-0", tmp_path / "a")
    b = shutil.copytree(groups / "lora" / "seed-0", tmp_path / "b")
    later = write_rows(tmp_path / "later.jsonl", read_jsonl(place.rows)[:12])
    assert bara("evaluate", a, "--task", later).code == 0
    assert_one_sentence(bara("compare", a / "evaluation" / "later-test", b), "'later'", "'colours'")
    assert_one_sentence(bara("compare", a, b, "--on", "later-test"), "has no evaluation 'later-test'")
    assert bara("evaluate", b, "--task", later, "--samples", 2).code == 0
    assert_one_sentence(bara("compare", a, b, "--on", "later-test"), "S = 3", "S = 2")
    assert bara("evaluate", b, "--task", later, "--samples", 3, "--overwrite").code == 0
    assert json.loads(bara("compare", a, b, "--on", "later-test", "--json").out)["rows"] == 12
    assert_one_sentence(bara("compare", a, b, "--samples", 7), "S = 0, 3 and not 7")
    assert_one_sentence(bara("compare", a, tmp_path / "none"), "There is no folder")
    (tmp_path / "rows.csv").write_text("text")
    assert_one_sentence(bara("compare", a, tmp_path / "rows.csv"), "rows.csv is a file, not the folder")
    assert_one_sentence(bara("compare", a, place.backbone), "There is no evaluated run")


def test_clusters_come_from_a_table(groups: Path, tmp_path: Path, bara: Bara) -> None:
    a, b = groups / "bara" / "seed-0", groups / "lora" / "seed-0"
    ids = _ids(a)
    table = write_rows(tmp_path / "things.jsonl", ({"id": i, "cluster": i.split("-")[0]} for i in ids))
    found = json.loads(bara("compare", a, b, "--clusters", table, "--json").out)
    assert found["clusters"] == len({i.split("-")[0] for i in ids}) < found["rows"]
    some = write_rows(tmp_path / "some.jsonl", ({"id": i, "cluster": "x"} for i in ids[1:]))
    assert_one_sentence(bara("compare", a, b, "--clusters", some), repr(ids[0]), "no cluster")
    all_one = write_rows(tmp_path / "one.jsonl", ({"id": i, "cluster": "x"} for i in ids))
    assert_one_sentence(bara("compare", a, b, "--clusters", all_one), "one cluster")
    lacking = write_rows(tmp_path / "lacking.jsonl", ({"id": i} for i in ids))
    assert_one_sentence(bara("compare", a, b, "--clusters", lacking), "row 1 has no")


def test_blank_clusters_stand_for_themselves(groups: Path, tmp_path: Path, bara: Bara) -> None:
    """In a table without them as where each row is its own; a row is not of a cluster that has its name."""
    a, b = groups / "bara" / "seed-0", groups / "lora" / "seed-0"
    ids = _ids(a)
    found = {}
    for name, clusters in {
        "own": ids,
        "blank": [""] * len(ids),
        "named": [ids[1], ids[1], *[""] * (len(ids) - 2)],  # of rows 0 and 1, as row 1 is called
        "pair": ["pair", "pair", *ids[2:]],
    }.items():
        pd.DataFrame({"id": ids, "cluster": clusters}).to_csv(tmp_path / f"{name}.csv", index=False)
        result = bara("compare", a, b, "--clusters", tmp_path / f"{name}.csv", "--json")
        assert result.code == 0, result.err
        found[name] = json.loads(result.out)
    assert found["blank"] == found["own"]
    assert found["named"]["clusters"] == found["pair"]["clusters"] == len(ids) - 1
