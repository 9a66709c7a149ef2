"""The README's examples run as they stand, with fewer steps and rows."""

import re
from pathlib import Path

import pyro
import torch

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[str]:
    found = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    short = {"1500": "2", "task.test)": "task.test[:8])"}
    for old, new in short.items():
        found[0] = found[0].replace(old, new)
    return found


def test_the_examples_run_in_order() -> None:
    first, swap, stock = blocks()
    names: dict = {"pyro": pyro}
    exec(compile(first, "README.md", "exec"), names)
    probabilities = names["probabilities"]
    assert probabilities.shape == (8, 2)
    assert torch.allclose(probabilities.sum(-1), torch.ones(8, dtype=torch.float64))
    exec("from bara_pyro.guides.lognormal import LogNormalGuide", names)
    exec(compile(swap, "README.md", "exec"), names)
    assert type(names["guide"]).__name__ == "LogNormalGuide"
    exec(compile(stock, "README.md", "exec"), names)
    frozen = {value.data_ptr() for value in names["backbone"].lm.parameters()}
    loss = names["svi"].step(names["train"].batch([0, 1], names["answers"]))
    assert loss > 0
    stored = [value.data_ptr() for value in pyro.get_param_store().values()]
    assert stored
    assert frozen.isdisjoint(stored)


def test_public_names_are_not_hidden_by_modules() -> None:
    """A submodule of the same name would replace a public name as soon as anything imports it."""
    import pkgutil

    import bara_pyro

    assert not {module.name for module in pkgutil.iter_modules(bara_pyro.__path__)} & set(bara_pyro.__all__)
