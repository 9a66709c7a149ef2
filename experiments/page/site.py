"""What the documentation site has beyond docs/: read by mkdocs as its hook (`make docs`).

Pages that are generated (the methods, the names of `bara_pyro`), the list of results in the navigation, and
what GitHub reads differently: links to files outside docs/, and tables in `<details>`.
"""

import inspect
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import bara_pyro
from bara_pyro.errors import DataError
from bara_pyro.report.table import Column, Table, markdown
from experiments.page.method_list import method_list

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
NAMES = (Column("name", "name"), Column("text", "what it is"))
INTRO = """# bara_pyro

What `import bara_pyro as bp` offers: the parts of a run in Python, from loading to prediction. A name is
loaded when it is first used, so that the import is quick. The other pages hold what lies below.
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that docs/results.md links to behind it in the navigation, in that order."""
    index = Path(config.docs_dir, "results.md").read_text(encoding="utf-8")
    pages = re.findall(r"\]\((results/[\w-]+\.md)\)", index)
    config.nav = [
        {"Results": ["results.md", *pages]} if item == "results.md" else item for item in config.nav
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated."""
    for path, text in {"method_list.md": method_list(), "api/index.md": public_names()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(text: str, page: Page, **_: Any) -> str:
    """Return a page as Python-Markdown reads it."""
    folder = PurePosixPath("docs", page.file.src_uri).parent
    text = text.replace("<details><summary>", '<details markdown="1"><summary>')
    return LINK.sub(lambda link: outside(link, folder), text)


def outside(link: re.Match[str], folder: PurePosixPath) -> str:
    """Return a link as it is, or what it is to where it leads out of docs/: the path in the repository.

    Raises:
        DataError: there is no such file.
    """
    path = os.path.normpath(folder / link[2])
    if ":" in link[2] or path.startswith("docs/"):
        return link[0]
    if not (ROOT / path).exists():
        raise DataError(f"A page in {folder} links to {link[2]}, which is not there.")
    return f"`{path}`" if link[1].strip("`") == path else f"{link[1]} (`{path}`)"


def public_names() -> str:
    """Return the page of the names that `bara_pyro` offers, each with its first sentence and a link."""
    rows = []
    for name in bara_pyro.__all__:
        thing = getattr(bara_pyro, name)
        first = (inspect.getdoc(thing) or "").split("\n")[0]
        rows.append({"name": f"[`{name}`][{thing.__module__}.{thing.__qualname__}]", "text": first})
    return "\n".join([INTRO, markdown(Table(NAMES, rows))])
