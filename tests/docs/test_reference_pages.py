"""The generated reference pages name every command, every option of `bara train` and every setting."""

from typing import Any

from typer.main import get_command

from bara_pyro.cli.app import app
from bara_pyro.runs.config import load_config
from docs.tools.reference_pages import reference_pages


def test_the_pages_name_every_command_and_setting() -> None:
    pages = reference_pages()
    group: Any = get_command(app)
    names = group.list_commands(None)
    assert "train" in names
    for name in names:
        assert f"### bara {name} " in pages["command_line.md"]
    train = group.get_command(None, "train")
    for option in train.params:
        if option.param_type_name == "option" and option.help and option.name != "help":
            assert f"`{option.opts[0]}`" in pages["command_line.md"]
    for section, values in load_config().dump().items():
        if section != "method" and isinstance(values, dict):
            for key in values:
                assert f"`{section}.{key}`" in pages["settings.md"]
