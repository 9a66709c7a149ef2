"""The notebooks run from their first cell to their last, and what is committed is what their code printed."""

import re
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from PIL import Image

from docs.tools.notebooks import code_of, execute, fewer_colours, notebooks

KILOBYTES = 250
# Paths, and addresses of objects.
PLACES = re.compile(r"/(?:home|root|tmp|work|opt|usr|var|Users)/|[A-Z]:\\|site-packages|localhost| at 0x")
FIGURE = new_code_cell(
    """
import sys

from bara_pyro.report.style import dress, new_figure

%matplotlib inline
print("of the imports", file=sys.stderr)
figure = new_figure(2, 2)
dress(figure.add_subplot(), "steps", "nats")
figure
"""
)


def saved(path: Path, *cells: nbformat.NotebookNode) -> Path:
    nbformat.write(new_notebook(cells=list(cells)), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks())
def test_it_runs_in_its_short_form(name: str) -> None:
    path = notebooks()[name]
    before = path.read_bytes()
    cells = [cell for cell in execute(path, short=True).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    said = [output.text for cell in cells for output in cell.outputs if output.get("name") == "stderr"]
    assert said == []
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", notebooks())
def test_what_is_committed_is_of_this_code_and_of_no_machine(name: str) -> None:
    path = notebooks()[name]
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 1000 * KILOBYTES
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.executed == code_of(notebook), "run `make notebooks`: the code has changed"
    assert {*notebook.metadata} == {"kernelspec", "language_info", "executed"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.language_info == {"name": "python"}
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    for cell in notebook.cells:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", cell.id)  # given, not drawn
        assert {*cell.metadata} <= {"alt"}
    for output in (output for cell in cells for output in cell.outputs):
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
        told = [text for kind, text in output.get("data", {}).items() if kind.startswith("text")]
        words = "".join([output.get("text", ""), *told])
        assert not PLACES.search(words)


def test_there_are_four() -> None:
    assert {*notebooks()} == {"first_run", "prior_and_guide", "is_my_posterior_right", "generate_and_choose"}


@pytest.mark.slow
def test_a_notebook_is_left_without_what_differs_from_run_to_run(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "small.ipynb",
        new_markdown_cell("# Small"),
        FIGURE,
        new_code_cell("import os\n\nprint(os.environ['BARA_NOTEBOOK'], os.path.basename(os.getcwd()))"),
        new_code_cell("print('a warning', file=sys.stderr)"),
    )
    found = execute(path, short=True)
    _, drawn, printed, warned = found.cells
    assert [output.output_type for output in drawn.outputs] == ["execute_result"]
    assert printed.outputs[0].text == f"short {tmp_path.name}\n"
    assert warned.outputs[0].name == "stderr"  # only what is imported may complain
    assert not any("execution" in cell.metadata for cell in found.cells)
    assert found.metadata.executed == code_of(nbformat.read(path, as_version=4))
    picture = Image.open(BytesIO(b64decode(drawn.outputs[0].data["image/png"])))
    assert picture.mode == "P"
    assert not picture.info.keys() & {"Software", "Creation Time"}


def test_a_cell_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(saved(tmp_path / "fails.ipynb", new_code_cell("1 / 0")))


def test_fewer_colours_are_near_those_that_were_there() -> None:
    steps = np.linspace(0, 255, 40).astype(np.uint8)  # no more than can be kept
    image = np.stack(
        [np.tile(steps, (40, 1)), np.full((40, 40), 90, np.uint8), np.full((40, 40), 7, np.uint8)], -1
    )
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "png")
    after = Image.open(BytesIO(b64decode(fewer_colours(b64encode(buffer.getvalue()).decode()))))
    assert after.size == (40, 40)
    assert np.abs(np.asarray(after.convert("RGB")).astype(int) - image).max() <= 8
