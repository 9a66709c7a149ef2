"""Stored rows: what went in comes out, once and in one order, and only where it is the record's own."""

import json

import pandas as pd
import pytest
import torch
from study_cases import invent, predictions, records_of, write_run

from bara_pyro.atomic import write_json, write_jsonl
from bara_pyro.errors import DataError
from bara_pyro.metrics import evaluate
from bara_pyro.microworld import World
from experiments.engine.record import IDENTITY, record_path
from experiments.engine.results import changing, results_path, write_study
from experiments.engine.rows import RunRows, collect, lacking, read_rows, rows_of_study, rows_path, write_rows

SCORES = ("acc", "ece", "nll", "brier")


def run_rows(classes: int, **about) -> RunRows:
    generator = torch.Generator().manual_seed(classes)
    logits = 9 * torch.randn(40, classes, dtype=torch.float64, generator=generator)
    logits[0] = 0.0  # a tie
    logits[1, 0] = -2000.0  # a probability that is 0 in float64
    log_probs = {0: logits.log_softmax(1), 10: (logits / 2).log_softmax(1)}
    ids, clusters = tuple(f"r{i}" for i in range(40)), tuple(f"c{i % 7}" for i in range(40))
    labels = torch.randint(1, classes, (40,), generator=generator)
    known = {"arm": "lora", "hash": "ab12", "commit": "1234567", "task": "t", "seed": 0, "tested_on": "t"}
    return RunRows(**known | about, ids=ids, clusters=clusters, labels=labels, log_probs=log_probs)


def test_what_is_written_is_read(tmp_path):
    runs = [run_rows(2), run_rows(4, task="u", tested_on="u", hash="cd34", seed=2)]
    write_rows("study", reversed(runs), tmp_path)
    for run, found in zip(runs, read_rows("study", tmp_path), strict=True):
        tensors = {"labels": None, "log_probs": None}
        assert vars(found) | tensors == vars(run) | tensors
        assert torch.equal(found.labels, run.labels)
        for samples, expected in run.log_probs.items():
            scores, known = evaluate(found.log_probs[samples], run.labels), evaluate(expected, run.labels)
            assert {key: scores[key] for key in SCORES} == pytest.approx(
                {key: known[key] for key in SCORES}, abs=1e-5
            )
            assert torch.equal(found.log_probs[samples].argmax(1), expected.argmax(1))


def test_the_same_rows_are_the_same_bytes(tmp_path):
    runs = [run_rows(2, seed=seed) for seed in range(3)]
    write_rows("study", runs, tmp_path)
    before = rows_path("study", tmp_path).read_bytes()
    write_rows("study", read_rows("study", tmp_path)[::-1], tmp_path)
    assert rows_path("study", tmp_path).read_bytes() == before


def test_pandas_reads_it_without_us(tmp_path):
    write_rows("real", [run := run_rows(2), run_rows(2, seed=1)], tmp_path)
    frame = pd.read_parquet(rows_path("real", tmp_path))
    one = frame[(frame.seed == run.seed) & (frame.arm == "lora") & (frame.S == 10)]
    right = torch.tensor(one.log_odds_1.to_numpy() > 0).long().eq(torch.tensor(one.label.to_numpy()))
    assert 100 * right.double().mean() == pytest.approx(evaluate(run.log_probs[10], run.labels)["acc"])


def test_rows_are_collected_as_runs_end(tmp_path):
    results, runs = tmp_path / "results", tmp_path / "runs"
    kept = invent("study", results, tasks={"one": 60, "two": 50}, seeds=2)
    collect("study", runs, results=results)
    assert {*lacking("study", results)} == {
        f"{run['arm']} on {run['task']}, seed {run['seed']}" for run in kept
    }
    assert not rows_path("study", results).exists()
    finish(kept[:1], runs, results)
    collect("study", runs, results=results)
    assert len(lacking("study", results)) == len(kept) - 1
    finish(kept[1:], runs, results)
    for run in kept[:1]:  # its folder may be gone: what is stored stays
        (runs / run["hash"] / "predictions.jsonl").unlink()
    collect("study", runs, results=results)
    assert lacking("study", results) == []
    found = {(run.arm, run.task, run.seed): run for run in read_rows("study", results)}
    assert {run.commit for run in found.values()} == {""}  # their records do not say
    labels, log_probs = predictions("bara", "two", 1, 50)
    assert torch.equal(found["bara", "two", 1].labels, labels)
    torch.testing.assert_close(found["bara", "two", 1].log_probs[10], log_probs[10], atol=1e-6, rtol=0)
    assert found["bara", "two", 1].clusters == found["bara", "two", 1].ids  # nobody says what they share


def finish(kept, runs, results):
    for run in kept:
        rows = {"one": 60, "two": 50}[run["task"]]
        write_run(runs / run["hash"], *predictions(run["arm"], run["task"], run["seed"], rows))
        record = records_of("study", results)[run["hash"]]
        write_json(record_path(runs / "records", run["hash"]), record)


def test_rows_of_another_run_are_refused(tmp_path):
    results, runs = tmp_path / "results", tmp_path / "runs"
    kept = invent("study", results, tasks={"one": 60}, seeds=1)
    finish(kept, runs, results)
    write_run(runs / kept[0]["hash"], *predictions("blob", "one", 7, 60))
    with pytest.raises(DataError, match=r"lora on one, seed 0 .* by its rows and .* by the stored"):
        collect("study", runs, results=results)


@pytest.mark.parametrize(("given", "world", "of"), [({}, 0, ""), ({"world": 7}, 7, " of world 7")])
def test_residents_of_a_microworld_are_its_clusters(tmp_path, given, world, of):
    results, runs = tmp_path / "results", tmp_path / "runs"
    (run,) = invent("study", results, arms=("lora",), tasks={"micro-near": 150}, seeds=1)
    with changing(results_path("study", results)) as store:
        store.records[run["hash"]]["config"]["task"] = {"seed": 0, **given}
    folder = runs / run["hash"]
    write_run(folder, *predictions("lora", "micro-near", 0, 150))
    write_json(record_path(runs / "records", run["hash"]), records_of("study", results)[run["hash"]])
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    write_jsonl(
        folder / "predictions.jsonl", [{**r, "id": f"micro-near-test-{int(r['id']):05d}{of}"} for r in lines]
    )
    collect("study", runs, results=results)
    (near,) = read_rows("study", results)
    assert set(near.clusters) <= {f"{who.name}{of}" for who in World(world).newcomers}


def test_a_study_without_rows_says_so(tmp_path):
    with pytest.raises(DataError, match="not stored until its next run"):
        rows_of_study("real", tmp_path)
    write_rows("real_few", [run_rows(2)], tmp_path)
    with pytest.raises(DataError, match=r"has no rows of 'real': they are not stored until its next run"):
        rows_of_study("real", tmp_path)


def test_other_files_are_no_rows(tmp_path):
    invent("real", tmp_path, arms=("lora",), tasks={"t": 20}, seeds=1)
    path = rows_path("real", tmp_path)
    write_rows("real", [run_rows(2)], tmp_path)
    whole = path.read_bytes()
    pd.DataFrame({"arm": ["lora"]}).to_parquet(path)
    for content in (b"no", b"", whole[:-9], whole[: len(whole) // 2], path.read_bytes()):
        path.write_bytes(content)
        for ask in (read_rows, lacking):
            with pytest.raises(DataError, match=f"{path} does not hold the rows"):
                ask("real", tmp_path)
        assert path.read_bytes() == content


def test_rows_of_runs_that_are_gone_or_failed_count_no_more(tmp_path):
    """An arm whose runs failed after a change, or were taken out, was compared by what it had before."""
    results, runs = tmp_path / "results", tmp_path / "runs"
    kept = invent("study", results, arms=("lora", "bara"), tasks={"one": 60}, seeds=2)
    finish(kept, runs, results)
    collect("study", runs, results=results)

    failed = next(run for run in kept if run["arm"] == "bara" and run["seed"] == 1)
    record = records_of("study", results)[failed["hash"]]
    lost = {key: record[key] for key in ("schema", "kind", *IDENTITY)} | {"failed": "out of memory"}
    write_study("study", kept, [lost], {}, folder=results)
    assert {(run.arm, run.seed) for run in rows_of_study("study", results)} == {
        ("lora", 0), ("lora", 1), ("bara", 0)
    }  # fmt: skip

    again = [run if run is not failed else run | {"hash": "f" * 12} for run in kept]
    write_study("study", again, [record | {"config_hash": "f" * 12}], {}, folder=results)
    assert lacking("study", results) == ["bara on one, seed 1"]

    write_study("study", [run for run in kept if run["arm"] == "lora"], [], {}, folder=results)
    assert {run.arm for run in rows_of_study("study", results)} == {"lora"}
