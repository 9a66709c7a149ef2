"""The README's example runs to its end as it stands, with fewer steps and rows, and learns."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from bara_pyro.core.prediction import predict
from bara_pyro.metrics import evaluate, posterior_predictive

README = Path(__file__).parents[1] / "README.md"
# A tenth of the steps, at which the score is clear of the untrained model's, and some of the rows.
SHORT = {"1500": "150", "(task.train, task.test)": "(task.train, task.test[:200])"}
LINES = 120


def nll(names: dict[str, Any]) -> float:
    """Score the model and guide that an example left, in nats."""
    bp, test = names["bp"], names["test"]
    rows = bp.batches(test, names["answers"], batch_size=64)
    drawn = [posterior_predictive(predict(names["model"], names["guide"], b, samples=4)) for b in rows]
    return float(evaluate(torch.cat(drawn), torch.tensor(test.labels))["nll"])


@pytest.mark.slow
def test_the_example_runs_to_its_end_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text()
    for old, new in SHORT.items():
        assert old in text
        text = text.replace(old, new)
    [example] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(example.split("optim =")[0], "README.md", "exec"), names)
    untrained = nll(names)  # B is zero: the language model as it is
    exec(compile(example, "README.md", "exec"), names)
    assert nll(names) < untrained - 0.05
    assert "'nll'" in capsys.readouterr().out


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= LINES
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text):
        assert (README.parent / target).exists(), target
