"""Notebooks as pages of the site: every cell in its order, pictures beside the page, links to other pages."""

from base64 import b64encode
from pathlib import Path, PurePosixPath

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from bara_pyro.errors import DataError
from docs.tools.notebook_pages import notebook_pages
from docs.tools.notebooks import notebooks
from docs.tools.site import as_read

PNG = b"\x89PNG, as far as a page is concerned"


def folder(path: Path, **metadata: str) -> Path:
    """A folder with one notebook, of a text, and of a cell that prints a line and draws a picture."""
    drawn = new_output("execute_result", {"image/png": b64encode(PNG).decode(), "text/plain": "<Figure>"})
    printed = new_output("stream", name="stdout", text="42\n")
    code = new_code_cell("draw()", id="curve", outputs=[printed, drawn], metadata=metadata)
    cells = [new_markdown_cell("# A title\n\nWords."), new_markdown_cell("## More"), code]
    nbformat.write(new_notebook(cells=cells), path / "small.ipynb")
    return path


def test_a_page_has_every_cell_and_what_it_printed_and_drew(tmp_path: Path) -> None:
    pages = notebook_pages(folder(tmp_path, alt="A curve that falls."))
    assert pages["notebooks/small/curve-1.png"] == PNG
    page = str(pages["notebooks/small.md"])
    parts = ["# A title", '<a href="small.ipynb" download>', "## More", "````python\ndraw()\n````"]
    parts += [".output .no-copy }\n42\n````", "![A curve that falls.](small/curve-1.png)"]
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert "<Figure>" not in page


def test_a_picture_without_a_description_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"small.ipynb: the picture of the cell 'curve' has no description"):
        notebook_pages(folder(tmp_path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](notebooks/first_run.ipynb)", "[a](notebooks/first_run.md)"),
        ("[a](first_run.ipynb#then)", "[a](first_run.md#then)"),
        ("[a](https://example.org/first_run.ipynb)", "[a](https://example.org/first_run.ipynb)"),
        ('<a href="first_run.ipynb" download>', '<a href="first_run.ipynb" download>'),
        ("`first_run.ipynb`", "`first_run.ipynb`"),
    ],
)
def test_links_to_notebooks_lead_to_their_pages(text: str, expected: str) -> None:
    assert as_read(text, PurePosixPath("docs", "start.md")) == expected


def test_every_notebook_is_in_the_navigation() -> None:
    site = (Path(__file__).parents[2] / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f": notebooks/{name}.md\n" in site for name in notebooks())
    assert {f"notebooks/{name}.md" for name in notebooks()} <= {*notebook_pages()}
