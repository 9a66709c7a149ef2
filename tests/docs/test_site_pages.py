"""The pages of the site: their Python runs, with fewer steps and rows; commands are right."""

import math
import re
import shlex
from pathlib import Path
from textwrap import indent
from typing import Any

import click
import pyro
import pytest
import torch
from once import parser

from bara_pyro.cli.catalogue import catalogue
from bara_pyro.core.priors import PRIORS
from bara_pyro.guides.families import FAMILIES
from bara_pyro.runs.assignments import collect
from bara_pyro.runs.config import load_config, parse_config
from bara_pyro.runs.system import build_system
from bara_pyro.runs.writing import save_system, write_config

DOCS = Path(__file__).parents[2] / "docs"
# What makes them short, or right for the run of the tests; each has to be on its page.
SHORT = {
    "start": {  # the run is one of the microworld, which knows its own words only
        "runs/tickets": "runs/first",
        "My card was charged twice.": "in winter bimu keeps what ? A:goats B:ducks Answer :",
    },
    "swap": {
        "steps=300": "steps=6",
        "range(100)": "range(6)",
        "[:500]": "[:40]",
        "samples=100": "samples=10",
    },
    "posterior": {
        'split("test")': 'split("test").take(range(8))',
        "task.train[:16]": "task.train[:4]",
        "range(16)": "range(4)",
        "num_data=16": "num_data=4",
        "steps=1000": "steps=20",
        "samples=400, warmup=200": "samples=16, warmup=8, max_tree_depth=2",
        "samples=1000": "samples=40",
        "steps=200": "steps=4",
        "simulations=20": "simulations=2",
    },
    "distance": {"1500": "6", "encode(task.train,": "encode(task.train[:40],"},
    "performance": {"1500": "6", "in (task.train, task.test)": "in (task.train[:40], task.test[:80])"},
    "peft": {
        "import bara_pyro.peft ": "from bara_pyro.microworld import backbone_path\nimport bara_pyro.peft ",
        "MODEL, dtype": "backbone_path(), dtype",
    },
}


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a run of a few rows in runs/first, and registries that forget what a page adds."""
    for registry in (PRIORS, FAMILIES):
        assert [*registry]  # all modules of the package are imported now, not into the copy
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    system = build_system(load_config(overrides={"method": "bara-gate", "task.limit": 40}))
    run = tmp_path / "runs" / "first"
    write_config(system, run)
    save_system(system, run, step=1)
    monkeypatch.chdir(tmp_path)


def run_page(name: str) -> dict[str, Any]:
    """Run the Python of a page, block after block, and return the names that it leaves."""
    text = (DOCS / f"{name}.md").read_text()
    for long, short in SHORT[name].items():
        assert long in text
        text = text.replace(long, short)
    names: dict[str, Any] = {}
    pyro.clear_param_store()
    torch.manual_seed(0)
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, f"{name}.md", "exec"), names)
    return names


@pytest.mark.usefixtures("in_a_folder")
def test_start(capsys: pytest.CaptureFixture[str]) -> None:
    [answer] = run_page("start")["answers"].rows
    assert sum(answer["probs"].values()) == pytest.approx(1.0)
    assert capsys.readouterr().out.startswith(answer["label"])


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_folder")
def test_swap(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("swap")
    shown = capsys.readouterr().out.splitlines()
    assert sum("'nll'" in line for line in shown) == 5
    assert math.isfinite(names["loss"])
    assert {"weibull", "gamma"} <= {*PRIORS}
    assert "exponential" in FAMILIES
    assert names["data"].posterior["phi"].dims == ("chain", "draw", "module", "rank")


def test_the_loop_on_the_page_is_that_of_the_file() -> None:
    file = (DOCS.parent / "experiments" / "svi.py").read_text()
    section = (DOCS / "swap.md").read_text().split("## The loop in one file")[1]
    [block] = re.findall(r"```py\n(.*?)```", section, flags=re.DOTALL)
    assert "svi.step(" in block
    assert indent(block, "    ") in file


def test_typed_lists_are_those_of_the_registries() -> None:
    """Both lists in docs/swap.md, whose own prior is `weibull`."""
    priors, guides = (DOCS / "swap.md").read_text().split("## Change the guide")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", priors, flags=re.MULTILINE))
    assert set(rows) == set(PRIORS)
    for name, cell in rows.items():
        assert set(re.findall(r"\w+(?=`)", cell)) == {*PRIORS[name].__code__.co_varnames}
    assert {*FAMILIES} == {*re.findall(r"^\| `([a-z-]+)`.* \|", guides, flags=re.MULTILINE)}


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_folder")
def test_posterior(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("posterior")
    assert names["draws"].theta.shape[:2] == (20, 8)
    assert len(names["found"].gates) == 4
    assert names["estimate"].log_weights.shape == (40,)
    assert names["calibration"].ranks.shape == (2, 5)  # of four gates and the log-likelihood
    assert "largest difference of a probability" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_folder")
def test_distance() -> None:
    """The page's loop ends with corrections that know the training rows."""
    names = run_page("distance")
    assert names["corrections"].distance.fitted


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_folder")
def test_performance() -> None:
    found = run_page("performance")["probabilities"]
    assert found.shape == (64, 2)
    assert found.sum(1).tolist() == pytest.approx([1.0] * 64)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # raised by PEFT
@pytest.mark.usefixtures("in_a_folder")
def test_peft() -> None:
    """Its second block does not stumble over the adapter of the first."""
    pytest.importorskip("peft")
    assert run_page("peft")["model"].peft_config["default"].r == 8


def commands() -> list[str]:
    """Every command of `bara` in a block of code of the pages, without what is set before it."""
    texts = [re.sub(r"\\\n +", "", page.read_text()) for page in sorted(DOCS.glob("*.md"))]
    lines = [line for text in texts for line in re.findall(r"^    (.*)$", text, flags=re.MULTILINE)]
    return [found[1] for line in lines if (found := re.match(r"(?:\$ )?(?:\w+=\S+ )*(bara .*)", line))]


@pytest.mark.parametrize("line", dict.fromkeys(commands()))
def test_the_command_is_one(line: str) -> None:
    """Command, options and values are read as the command line reads them; settings are checked."""
    args = shlex.split(line, comments=True)[1:]
    command: click.Command = parser()
    context = None
    while hasattr(command, "commands"):
        context = command.make_context("bara", args, parent=context, resilient_parsing=True)
        name, *args = args
        command = command.commands[name]
    read = command.make_context(line, args, parent=context).params
    if read.get("method"):
        assert read["method"] in {entry["name"] for entry in catalogue()["methods"]}
    if read.get("task") and not Path(read["task"]).suffix:  # a file is the reader's own
        assert read["task"] in {entry["name"] for entry in catalogue()["tasks"]}
    if read.get("assignments") and not read.get("plugin"):
        method = {"method": read["method"]} if read["method"] else {}
        parse_config(collect(None, method, read["assignments"]))


def test_there_are_commands() -> None:
    assert len(commands()) > 40
