"""The reference pages of the command line and of the settings, written from the code."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.main import get_command

from bara_pyro.cli.app import app
from bara_pyro.runs.sections import RunSettings
from docs.tools.method_list import table

COMMANDS = """# Command line

Every command and its options. In the terminal, `bara COMMAND --help` prints them, and `--help-all` prints
long lists in full. Settings that several commands share are on [their own page](settings.md).
"""
SETTINGS = """# Settings

Every setting of a run. On the command line a setting is the option named here, or `--set SECTION.KEY=VALUE`;
in Python it is an argument of `bp.train`. `--config settings.yaml` reads any of them from a file:

```yaml
method: {name: bara-gate}
train: {steps: 1500, lr: 0.001}
```

The settings of a run are in its `bara_config.json`, under `config`. Settings of the methods are in
[the list of methods](method_list.md).
"""
OPTIONS = ("option", "what it does")
KEYS = ("key", "default", "what it does")
DEFAULT_PANEL = "Commands"


def reference_pages() -> dict[str, str]:
    """Return the pages in Markdown, by their paths in docs/."""
    return {"command_line.md": "\n".join([COMMANDS, *commands()]), "settings.md": settings()}


def commands() -> Iterator[str]:
    """Yield a section for each command, in the order and under the headings of `bara --help`."""
    group: Any = get_command(app)
    panels: dict[str, list[str]] = {}
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        panel = getattr(command, "rich_help_panel", None)
        panels.setdefault(panel if isinstance(panel, str) else DEFAULT_PANEL, []).extend(
            sections(f"bara {name}", command)
        )
    for panel, found in panels.items():
        yield f"## {panel}\n"
        yield from found


def sections(name: str, command: Any) -> Iterator[str]:
    """Yield the section of a command, or those of its subcommands."""
    if inner := getattr(command, "commands", None):
        for key, one in inner.items():
            yield from sections(f"{name} {key}", one)
        return
    arguments = "".join(f" {argument(one)}" for one in command.params if one.param_type_name == "argument")
    rows = [
        (", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts)), cell(one.help or ""))
        for one in command.params
        if one.param_type_name == "option" and (one.help or "") and one.name != "help"
    ]
    anchor, usage = name.replace(" ", "-"), f"    {name}{arguments} [OPTIONS]"
    yield f"### {name} {{ #{anchor} }}\n\n{usage}\n\n{about(command)}\n"
    yield table(OPTIONS, rows) if rows else ""


def argument(parameter: Any) -> str:
    """Return an argument as a line of usage has it: in brackets if it may be left out."""
    name = parameter.metavar or parameter.human_readable_name
    name = str(name).strip("[]{}").upper()
    return name if parameter.required else f"[{name}]"


def about(command: Any) -> str:
    """Return what a command does, as Markdown."""
    return cell(str(command.help or "").partition("\f")[0])


def settings() -> str:
    """Return the page of the settings, a section each."""
    parts = [SETTINGS]
    for name, field in RunSettings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            parts.append(f"## {name}\n\n{cell(section.__doc__ or '')}\n\n{table(KEYS, keys(name, section))}")
        else:
            parts.append(f"## {name}\n\n{sentence(field.description)}\n")
    return "\n".join(parts)


def keys(section: str, model: type[BaseModel]) -> Iterable[tuple[str, str, str]]:
    """Yield a row for each setting of a section."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        shown = "required" if default is PydanticUndefined else f"`{json.dumps(default, default=str)}`"
        yield f"`{section}.{name}`", shown, sentence(field.description)


def sentence(text: str | None) -> str:
    """Return a description as a sentence in a cell.

    >>> sentence("rank of the adapters")
    'Rank of the adapters.'
    """
    text = cell(text or "").rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def cell(text: str) -> str:
    """Return a text on one line, with what Markdown would read as markup in a table escaped."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")
