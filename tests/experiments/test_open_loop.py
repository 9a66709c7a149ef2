"""The scripts that show the SVI loop: each runs in a short form and writes what it says."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bara_pyro as bp
from experiments import ablation, from_adapter, nuts, svi


def run(module, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *arguments])
    module.main()


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["stock", "ours"])
def test_svi_learns_and_writes_draws(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = bp.load_task("micro-wgs")
    # So few rows are soon learnt by heart: the loss falls by 0.4 nats, many times its noise.
    few = replace(task, train=task.train[:32], test=task.test[:20])
    monkeypatch.setattr(bp, "load_task", {"micro-wgs": few}.get)
    run(svi, monkeypatch, "--loop", loop, "--out", str(tmp_path), "--steps", "200", "--lr", "3e-3")
    said = capsys.readouterr().out
    first, second = (float(loss) for loss in re.findall(r"negative ELBO ([\d.]+) nats", said))
    assert second < first
    counts = [int(rows) for rows in re.findall(r"^from 0\.\d +(\d+)", said, flags=re.MULTILINE)]
    assert sum(counts) == 20
    assert {path.name for path in tmp_path.iterdir()} == {"draws.nc", "gates.png", "answers.png"}


@pytest.mark.slow
def test_ablation_scores_every_combination(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(ablation, monkeypatch, "--steps", "2", "--priors", "gamma", "halfcauchy", "--guides", "weibull")
    found = re.findall(r"^(phi\S*) +(\w+) +weibull +[\d.]+ ", capsys.readouterr().out, flags=re.MULTILINE)
    latents, priors = ("phi*theta", "phi"), ("gamma", "halfcauchy")
    assert found == [(latent, prior) for latent in latents for prior in priors]


@pytest.mark.slow
def test_nuts_and_the_guide_agree_roughly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(nuts, monkeypatch, "--rows", "1", "--r", "1", "--samples", "200", "--steps", "300")
    found = gates(capsys.readouterr().out)
    assert len(found) == 2
    for mean, fitted, width in found:
        assert 1 / 3 < fitted / mean < 3
        assert 1 / 3 < width < 3


def gates(said: str) -> list[tuple[float, ...]]:
    """Return the mean of each gate under NUTS and the guide, and the ratio of their deviations."""
    return [
        tuple(map(float, row))
        for row in re.findall(r"0\] +([\d.]+) +([\d.]+) +([\d.]+)$", said, re.MULTILINE)
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # raised by PEFT
def test_posteriors_around_an_adapter_are_scored_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for part, names in (("rows", "abcdefgh"), ("new", "ijklmnop"), ("test", "qrstuvwx")):
        kept = [f"in winter {name} keeps {what} .,{what}" for name in names for what in ("goats", "ducks")]
        (tmp_path / f"{part}.csv").write_text("\n".join(["text,label", *kept]))
    files = [
        word for part in ("rows", "new", "test") for word in (f"--{part}", str(tmp_path / f"{part}.csv"))
    ]
    more = ["--epochs", "1", "--top-layers", "1", "--r", "1", "--methods", "lora", "laplace", "bara-gate"]
    more += ["--steps", "2"]
    run(from_adapter, monkeypatch, *files, *more, "--out", str(tmp_path / "out"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    scores = {
        name: [*map(float, numbers)]
        for name, *numbers in lines
        if name in ("lora", "temperature", "laplace", "bara-gate")
    }
    assert scores.keys() == {"lora", "temperature", "laplace", "bara-gate"}
    assert scores["temperature"][0] == scores["lora"][0]  # a temperature changes no answer
    assert all(0 <= acc <= 100 and 0 <= ece <= 100 and nll > 0 for acc, ece, nll, _ in scores.values())

    run(nuts, monkeypatch, "--run", str(tmp_path / "out" / "bara-gate"), "--samples", "8")
    found = gates(capsys.readouterr().out)
    assert len(found) == 7  # one unit in each linear layer of one block
    assert all(abs(fitted - mean) < 4 for mean, fitted, _ in found)  # Gamma(1, 1) has a deviation of 1
