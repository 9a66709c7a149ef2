"""Rows with fewer options than others: predictions, scores and files speak of what a row offers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from app_cases import COLOURS, THINGS, Place, write_rows
from torch.nn import functional as F

import bara_pyro as bp
from bara_pyro.cli.running import run
from bara_pyro.core.observing import frozen_states
from bara_pyro.core.prediction import predict
from bara_pyro.data import batches
from bara_pyro.data.labels import among_offered
from bara_pyro.extras.bounds.guarantees import gibbs_draws
from bara_pyro.posthoc.distance import held_out_squares
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json, read_jsonl


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained on forty rows of two to four options."""
    folder = tmp_path_factory.mktemp("offered")
    rows = [
        {
            "id": f"{thing}-{number}",
            "question": f"is the {thing} ?",
            "choices": list(COLOURS[: 2 + (i + number) % 3]),
            "answer": COLOURS[number % 2],
        }
        for i, thing in enumerate(THINGS)
        for number in range(4)
    ]
    own = Place(Path("microworld"), write_rows(folder / "rows.jsonl", rows))
    settings = {"train__steps": 6, "predict__samples": [0, 3], "task__labels": "letters"}
    run(own.config(**settings), folder / "run")
    return folder / "run"


def test_scores_are_those_of_what_rows_offer(out: Path) -> None:
    system = bp.load_system(out)
    rows = {row.id: row for row in system.task.test}
    split = system.split("test")
    assert len({len(row.options) for row in rows.values()}) > 1
    [batch] = batches(split, system.answer_ids, len(split))
    raw = predict(system.model, system.guide, batch, samples=3).exp()
    report, lines = read_json(out / "metrics.json"), read_jsonl(out / "predictions.jsonl")
    losses, right = [], []
    for line in lines:
        i, row = batch.ids.index(line["id"]), rows[line["id"]]
        many = len(row.options)
        of_row = (raw[:, i, :many] / raw[:, i, :many].sum(-1, keepdim=True)).mean(0)
        expected = F.pad(of_row, (0, len(system.task.labels) - many))
        assert raw[:, i, many:].sum() > 0 or many == len(system.task.labels)
        found = torch.tensor(line["probs"]["3"], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        losses.append(-of_row[row.label].log())
        right.append(int(of_row.argmax()) == row.label)
    assert report["metrics"]["3"]["nll"] == pytest.approx(float(torch.stack(losses).mean()), abs=1e-6)
    assert report["metrics"]["3"]["acc"] == pytest.approx(100 * sum(right) / len(right))


def test_predict_says_what_evaluate_scores(out: Path) -> None:
    system = bp.load_system(out)
    asked = [
        {"id": row.id, "question": row.question.split("\n")[0], "choices": list(row.options)}
        for row in system.task.test
    ]
    lines = {line["id"]: line["probs"]["3"] for line in read_jsonl(out / "predictions.jsonl")}
    for row in bp.predict(system, asked, samples=3).rows:
        assert list(row["probs"].values()) == pytest.approx(lines[row["id"]], abs=1e-6)
        assert sum(row["probs"].values()) == pytest.approx(1)
        assert not row["label"].startswith("(")


def test_where_every_row_offers_all_nothing_is_touched() -> None:
    log_probs = torch.randn(2, 3, 4, dtype=torch.float64).log_softmax(-1)
    assert among_offered(log_probs, ()) is log_probs
    assert among_offered(log_probs, (4, 0, 4)) is log_probs
    texts = log_probs.clone()
    texts[:, 1, 3] = -torch.inf  # texts that a row does not offer have none of their own accord
    assert among_offered(texts, (4, 3, 4)) is texts


def test_split_half_calibration_and_the_bounds_know_what_rows_offer(out: Path, tmp_path: Path) -> None:
    """JSON has no infinity, which is what a row that does not offer an answer gives it."""
    rows = read_json(out / "bara_config.json")["config"]["task"]["name"]
    own = Place(Path("microworld"), Path(rows))
    settings = {"train__steps": 6, "predict__samples": [3], "adapter__calibrated": True}
    run(own.config(method__name="bara-gate", **settings), tmp_path / "run")
    system = bp.load_system(tmp_path / "run")
    split = system.split("test")
    drawn = gibbs_draws(system, split, 4 * len(split), seed=0).exp()
    counts = [len(row.options) for row in system.task.test]
    assert drawn.sum(-1) == pytest.approx(1)
    for i, many in enumerate(counts):
        assert drawn[:, i, many:].sum() == 0


def test_what_is_fitted_after_training_is_of_what_rows_offer_and_of_groups(out: Path, tmp_path: Path) -> None:
    """The scale and the radius of the noise, again by hand; five rows of one thing belong together."""
    started = bp.load_system(out)
    task = started.task
    rows = tuple(replace(row, cluster=row.id.split("-")[0]) for row in task.train)
    config = started.config.model_copy(
        update={"adapter": started.config.adapter.model_copy(update={"distance_aware": True})}
    )
    system = build_system(config, started.backbone, replace(task, train=rows))
    train(system, tmp_path / "run")
    told = read_json(tmp_path / "run" / "fitted.json")
    split = system.split("train")
    [batch] = batches(split, system.answer_ids, len(split))
    raw = predict(system.model, system.guide, batch, samples=0)[0]
    counts = {row.id: len(row.options) for row in rows}
    squares = [raw[i, : counts[row]].var(correction=0) for i, row in enumerate(batch.ids)]
    assert told["distance_scale"] == pytest.approx(float(torch.stack(squares).mean().sqrt()), rel=1e-4)
    things = [row.split("-")[0] for row in split.ids]
    squares = held_out_squares(frozen_states(system.model, batch), things)
    assert told["distance_radius"] == pytest.approx(float(squares.quantile(0.95)), rel=1e-4)
