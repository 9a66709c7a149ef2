"""The notebooks of docs/notebooks, run from their first cell to their last: `make notebooks`.

What they print and draw is committed, without anything that differs from run to run or tells of the machine.
"""

import hashlib
import io
import os
import resource
import time
from base64 import b64decode, b64encode
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image
from traitlets.config import Config

from bara_pyro.cli.terminal import say
from bara_pyro.errors import ConfigError, unknown
from experiments.engine.arguments import command_line, start

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
COLOURS = 64
"""Of a figure: a third of the bytes of one in all of them, and no difference to be seen."""


def notebooks() -> dict[str, Path]:
    """Return the notebooks by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}


def execute(path: Path, *, short: bool = False) -> NotebookNode:
    """Return a notebook with what its cells print and draw, run in a fresh process in its own folder.

    Args:
        path: of the notebook.
        short: a few steps and rows of everything; figures mean nothing then.

    Raises:
        CellExecutionError: a cell failed; the message holds it and what it said.
    """
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as sockets:
        # Over files in place of ports, which several at a time could both reach for.
        talk = Config(KernelManager=Config(transport="ipc", ip=f"{sockets}/kernel"))
        NotebookClient(
            notebook,
            config=talk,
            kernel_name="python3",
            startup_timeout=600,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(path.parent)}},
        ).execute(env=os.environ | ({"BARA_NOTEBOOK": "short"} if short else {}))
    return tidy(notebook)


def tidy(notebook: NotebookNode) -> NotebookNode:
    """Leave what says the same on every machine, and note which code it was; return the notebook."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    found = {"kernelspec": kernel, "language_info": {"name": "python"}, "executed": code_of(notebook)}
    notebook.metadata = nbformat.from_dict(found)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # What libraries say of their own installation while they are imported.
    cells[0].outputs = [output for output in cells[0].outputs if output.get("name") != "stderr"]
    for output in (output for cell in cells for output in cell.outputs):
        if "image/png" in output.get("data", {}):
            output.data["image/png"] = fewer_colours(output.data["image/png"])
    return notebook


def code_of(notebook: NotebookNode) -> str:
    """Return 12 hexadecimal digits over the code of a notebook: what is printed and drawn belongs to it."""
    code = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:12]


def fewer_colours(png: str) -> str:
    """Return a picture, a PNG file in base64, in `COLOURS` of its own."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(b64decode(png))) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    return b64encode(buffer.getvalue()).decode()


def main() -> None:
    """Run the notebooks that are named, all by default, and write what they print and draw."""
    known = notebooks()
    parser = command_line(__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"all by default: {', '.join(known)}")
    for name in parser.parse_args().names or known:
        if name not in known:
            raise ConfigError(unknown("notebook", name, known))
        started, spent = time.perf_counter(), cpu_of_children()
        nbformat.write(execute(known[name]), known[name])
        took, size = time.perf_counter() - started, known[name].stat().st_size
        cpu = cpu_of_children() - spent
        say(f"{name}: {took:.0f} s, of which {cpu:.0f} s of a core; {size / 1000:.0f} kB")


def cpu_of_children() -> float:
    """Return the seconds of CPU that finished child processes took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    start(main)
