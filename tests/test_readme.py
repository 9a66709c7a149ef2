"""The README's examples run to their end as they stand, with fewer steps and rows, and learn."""

import re
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch

README = Path(__file__).parents[1] / "README.md"
# A tenth of the steps, at which the score is clear of the untrained model's, and some of the rows.
SHORT = {"1500": "150", "(task.train, task.test)": "(task.train, task.test[:200])"}


def blocks() -> list[str]:
    text = README.read_text()
    for old, new in SHORT.items():
        assert old in text
        text = text.replace(old, new)
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def nll(names: dict[str, Any]) -> float:
    """Score the model and guide that an example left, in nats."""
    bp, test = names["bp"], names["test"]
    rows = bp.batches(test, names["answers"], batch_size=64)
    drawn = [bp.posterior_predictive(bp.predict(names["model"], names["guide"], b, samples=4)) for b in rows]
    return float(bp.evaluate(torch.cat(drawn), torch.tensor(test.labels))["nll"])


@pytest.mark.slow
def test_the_examples_run_to_their_end_and_learn(capsys: pytest.CaptureFixture[str]) -> None:
    first, swap, stock = blocks()
    names: dict[str, Any] = {}
    setup = first.split("optim =")[0]
    torch.manual_seed(0)
    exec(compile(setup, "README.md", "exec"), names)
    untrained = nll(names)  # B is zero: the language model as it is
    exec(compile(first, "README.md", "exec"), names)
    assert nll(names) < untrained - 0.05
    assert "'nll'" in capsys.readouterr().out
    exec(compile(swap, "README.md", "exec"), names)
    assert type(names["guide"]).__name__ == "LogNormalGuide"
    assert nll(names) == pytest.approx(untrained, abs=1e-3)
    exec(compile(stock, "README.md", "exec"), names)
    assert nll(names) < untrained - 0.05
    assert names["draws"]["y"].shape[0] == 10
    frozen = {value.data_ptr() for value in names["backbone"].lm.parameters()}
    stored = [value.data_ptr() for value in pyro.get_param_store().values()]
    assert stored
    assert frozen.isdisjoint(stored)


def test_public_names_are_not_hidden_by_modules() -> None:
    """A submodule of the same name would replace a public name as soon as anything imports it."""
    import pkgutil

    import bara_pyro

    assert not {module.name for module in pkgutil.iter_modules(bara_pyro.__path__)} & set(bara_pyro.__all__)
