"""The commands as a stranger meets them: help, lists, tables at 80 columns, the demonstration."""

import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import pytest
from app_cases import Bara, Place, assert_one_sentence, files_of, questions, save_backbone, write_rows
from command_cases import COMMANDS, options_of
from pydantic import Field
from rich.console import Console

from bara_pyro.cli import demo as demonstration
from bara_pyro.cli import terminal
from bara_pyro.cli.catalogue import catalogue, registered
from bara_pyro.cli.options import option_settings
from bara_pyro.data import SOURCES
from bara_pyro.data.tables import READERS
from bara_pyro.methods import METHODS
from bara_pyro.microworld import TASKS
from bara_pyro.microworld.build import build_tokenizer
from bara_pyro.report.table import Column, Table
from bara_pyro.runs.answers import FORMATS
from bara_pyro.runs.sections import RunSettings
from bara_pyro.untrusted.files import read_json

HEAVY = {"torch", "transformers", "matplotlib", "numpy", "datasets", "pandas"}
LIGHT = (
    *("", "--help", "--version", "methods", "methods --json", "tasks", "train --help-all", "nothing"),
    *("train --stepz 1", "train --out x --lr -1", "train --out x --method bora", "train --out /proc/x"),
    *("train --out x --set train.stepz=1", "predict RUN --output x", "evaluate absent", "demo --steps 0"),
    *("lm-eval --help", "lm-eval absent --tasks boolq"),
    *("conformal --help", "abstain absent", "detect RUN --alpha 2"),
    *("reward", "reward train --help", "reward score --help", "reward train --out x"),
)
LOADED = f"""
import sys
from bara_pyro.cli import app as cli
for arguments in sys.argv[1:]:
    sys.argv = ["bara", *arguments.split()]
    try:
        cli.main()
    except SystemExit:
        pass
    loaded = {HEAVY} & {{*sys.modules}}
    if loaded:
        sys.exit(f"{{arguments!r}} loads {{loaded}}")
"""


def test_lists_help_and_slips_load_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, *LIGHT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.parametrize(("removed", "instead"), [("prune", "--r"), ("reward train", "RewardTrainer")])
def test_a_removed_command_names_what_replaces_it(removed: str, instead: str, bara: Bara) -> None:
    refused = bara(*removed.split(), "RUN", "--out", "x")
    assert_one_sentence(refused, f"`bara {removed}` was removed", instead)
    assert refused.code == 2


@pytest.mark.parametrize(("command", "suffixes"), [
    *((words, READERS) for words in ("train --help", "train --help-all", "tasks")),
    *((f"{name} --help", FORMATS) for name in ("predict", "conformal", "abstain", "detect", "acquire")),
])  # fmt: skip
def test_help_names_every_file_format(command: str, suffixes: Iterable[str], bara: Bara) -> None:
    text = bara(*command.split()).out
    assert [suffix for suffix in suffixes if suffix not in text] == []


def test_the_catalogue_is_what_is_registered() -> None:
    """Where this fails: python -m bara_pyro.cli.catalogue.

    In whatever order modules were imported by the tests before.
    """
    stored, now = (
        {kind: sorted(lines, key=str) for kind, lines in found.items()}
        for found in (catalogue(), registered())
    )
    assert stored == now


@pytest.mark.parametrize("group", ["methods", "tasks", "reply_tasks"])
def test_the_registries_are_asked_where_a_package_offers_something(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = (f"bara_pyro.{group}",)
    monkeypatch.setattr("bara_pyro.cli.catalogue.entry_points", lambda group: [1] if group in offered else [])
    monkeypatch.setattr("bara_pyro.cli.catalogue.registered", lambda: {"methods": [], "tasks": []})
    assert catalogue() == {"methods": [], "tasks": []}
    offered = ()
    assert catalogue()["methods"]


def test_every_setting_is_an_option_of_train(bara: Bara, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = bara("train", "--help-all").out
    found = option_settings()
    keys = {setting.key for setting in found}
    for name, field in RunSettings.model_fields.items():
        section = getattr(field.annotation, "model_fields", None)
        assert {name} <= keys if section is None else {f"{name}.{inner}" for inner in section} <= keys
    assert len({setting.name for setting in found}) == len(found)
    for setting in found:
        assert len(re.findall(rf"--{setting.name.replace('_', '-')}\s", text)) == 1, setting
        assert setting.field.description, setting


def test_help_shows_the_options_that_people_need(bara: Bara) -> None:
    """And `--help-all` every one, with a line in the short help that says so."""
    for name, command in COMMANDS.items():
        short, full = bara(*name.split(), "--help").out, bara(*name.split(), "--help-all").out
        options = [option.opts[0] for option in options_of(name) if not option.hidden]
        shown = [option for option in options if re.search(rf"│[ *]+{option}[ ,]", short)]
        if "--help-all" not in options:
            assert len(options) <= 15, name
            continue
        assert "help_all" not in command.callback.help_options
        assert len(shown) - 1 == len(command.callback.help_options) <= 12, name  # and --help-all
        assert f"{len(options) - len(shown)} options" in short
        assert all(option in full for option in options), name


def test_a_setting_that_is_added_becomes_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    class More(RunSettings):
        colour: Literal["red", "blue"] = Field("red", description="of the paint")
        coats: int | None = Field(None, description="of the paint; null: as many as it takes")

    monkeypatch.setattr("bara_pyro.runs.assignments.RunSettings", More)
    added = {setting.key: setting.help for setting in option_settings()}
    assert added["colour"] == "Of the paint ('red', 'blue'). (default: red)"
    assert added["coats"] == "Of the paint. (default: as many as it takes)"


def test_bare_and_version(bara: Bara) -> None:
    bare = bara()
    assert bare.code == 0
    assert "Usage: bara" in bare.out
    assert bara("--version").out == f"bara {version('bara-pyro')}\n"
    for group in ("backbone", "microworld"):
        assert (bara(group).code, f"bara {group}" in bara(group).out) == (0, True)


@pytest.mark.parametrize("arguments", [["methods"], ["tasks"], ["tasks", "micro-wgs"]])
def test_json_is_all_that_is_printed(arguments: list[str], bara: Bara) -> None:
    result = bara(*arguments, "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)


def test_a_heading_has_one_arrow(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("acc", "ACC ↑", "%", ".1f", "max"), Column("nll", "NLL", "nats", ".3f", "min")]
    terminal.show(Table(columns, [{"acc": 75.0, "nll": 0.5}]))
    out = capsys.readouterr().out
    assert "ACC ↑ (%)" in out
    assert "NLL ↓ (nats)" in out


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    with terminal.progress("train", 100) as advance:
        for step in range(1, 101):
            clock[0] = float(step)
            advance(completed=step, note=f"nll {step}")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        f"train: {step} of 100, {step} s, about {100 - step} s to go, nll {step}" for step in (30, 60, 90)
    ]


def test_the_time_to_go_of_uneven_steps_is_counted_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From an estimate of the whole; once that has passed, only the elapsed time is shown."""
    clock = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    with terminal.progress("inspect", 4, even=False, seconds=80.0) as advance:
        for clock[0] in (35.0, 40.0, 75.0, 110.0):
            advance()
    assert capsys.readouterr().err.splitlines() == [
        "inspect: 1 of 4, 35 s, about 45 s to go",
        "inspect: 3 of 4, 75 s, about 5 s to go",
        "inspect: 4 of 4, 110 s",
    ]
    with terminal.progress("inspect", 4, even=False) as advance:
        clock[0] += 35
        advance()
    assert capsys.readouterr().err == "inspect: 1 of 4, 35 s\n"


def test_a_bar_counts_an_estimate_down(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, drawn = [0.0], io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=90, get_time=lambda: clock[0])
    monkeypatch.setattr(terminal, "errors", console)
    with terminal.progress("inspect", 4, even=False, seconds=80.0) as advance:
        for clock[0] in (35.0, 110.0):
            advance()
            time.sleep(0.2)  # the bar is drawn ten times a second
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", drawn.getvalue())
    assert "1/4 about 45 s to go" in shown
    assert "2/4 2 min" in shown


def test_lists(bara: Bara) -> None:
    methods = bara("methods")
    assert methods.code == 0
    assert all(name in methods.out for name in METHODS)
    tasks = bara("tasks")
    assert tasks.code == 0
    assert all(name in tasks.out for name in (*SOURCES, *TASKS))
    assert max(map(len, (methods.out + tasks.out).splitlines())) <= 90


def test_rows_of_a_task(place: Place, bara: Bara) -> None:
    result = bara("tasks", place.rows, "--rows", 1)
    assert result.code == 0
    assert "answers no, yes" in result.out
    assert "Answer:" in result.out
    assert bara("tasks", "micro-wgs").code == 0


@pytest.fixture(scope="module")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The microworld's vocabulary under random weights: tasks that know the truth, in no time."""
    return save_backbone(tmp_path_factory.mktemp("world"), tokenizer=build_tokenizer())


FEW = {"train.steps": 3, "task.limit": 6}


@pytest.mark.slow
def test_demo_with_the_truth(
    small_world: Path, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "QUICK", FEW | {"task.limit": 40})
    out = tmp_path / "demo"
    result = bara("demo", "--quick", "--out", out, "--model", small_world)
    assert result.code == 0, result.err
    assert files_of(out) == {
        *("lora", "bara", "bara-gate", "index.html", "results.json", "results.md", "manifest.json"),
        *("reliability-s10.png", "reliability-s0.png", "elbo.png"),
    }
    rows = read_json(out / "results.json")["rows"]
    names = [(row["method"], row.get("S")) for row in rows]
    assert names == [
        ("no training", None),
        *((name, s) for name in ("LoRA", "BaRA", "BaRA gate") for s in (0, 10)),
        ("truth", None),
    ]
    assert float(rows[-1]["kl_truth"]) == 0
    assert all(row["kl_truth"] > 0 for row in rows[:-1])
    page = (out / "index.html").read_text()
    assert page.count("<svg") >= 3
    assert all(word in page for word in ("truth", "quick run", "S = 10", "chance alone"))
    table = result.out[result.out.index("acc, ECE") : result.out.index("Open ")]
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "…" not in table


@pytest.mark.slow
def test_demo_again_and_after_an_interruption(
    place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "QUICK", FEW)
    out = tmp_path / "demo"
    arguments = ["demo", "--quick", "--out", out, "--model", place.backbone, "--task", place.rows]
    assert bara(*arguments).code == 0
    page = (out / "index.html").read_bytes()
    assert bara(*arguments).code == 0  # a finished one is shown again
    assert (out / "index.html").read_bytes() == page
    trained: list[str] = []
    real = demonstration.run

    def run(config, folder, **options):
        if stop and config.method.name == "bara-gate":
            raise KeyboardInterrupt
        before = (folder / "guide.safetensors").exists()
        report = real(config, folder, **options)
        trained.append(f"{config.method.name} {'kept' if before else 'trained'}")
        return report

    monkeypatch.setattr(demonstration, "run", run)
    stop = True
    assert bara(*arguments, "--overwrite").code != 0
    assert trained == ["lora trained", "bara trained"]  # from the start
    stop = False
    trained.clear()
    result = bara(*arguments)
    assert result.code == 0
    assert trained == ["lora kept", "bara kept", "bara-gate trained"]  # an interrupted one goes on
    assert "truth" not in result.out
    trained.clear()
    assert_one_sentence(bara(*arguments, "--seed", 1), "--overwrite")
    assert bara(*arguments, "--overwrite", "--seed", 1).code == 0
    assert set(trained) == {"lora trained", "bara trained", "bara-gate trained"}
    (out / "lora" / "notes.txt").write_text("mine")
    assert_one_sentence(bara(*arguments), "notes.txt", "not written by bara")


def test_microworld_build(tmp_path: Path, bara: Bara) -> None:
    result = bara("microworld", "build", "--out", tmp_path / "world", "--steps", 1)
    assert result.code == 0, result.err
    assert "parameters" in result.out
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files_of(tmp_path / "world")


def test_names_of_rows_are_no_markup(place: Place, tmp_path: Path, bara: Bara) -> None:
    rows = [{**row, "id": f"[/r{n}]"} for n, row in enumerate(questions())]
    found = bara("tasks", write_rows(tmp_path / "rows.jsonl", rows))
    assert found.code == 0
    assert "[/r0]" in found.out
