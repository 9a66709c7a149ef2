"""What the documentation site has beyond docs/: read by mkdocs as its hook (`make docs`).

Pages that are generated (methods, parts of the API), the list of results in the navigation, and what GitHub
reads differently: links to files outside docs/, tables in `<details>`, `|` of code in a table.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from bara_pyro.errors import DataError
from experiments.page.api_pages import api_pages
from experiments.page.method_list import method_list

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"`[^`]*`")
IN_TABLE = re.compile(r"(?m)^\|.*`.*$")
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that docs/results.md links to behind it in the navigation, in that order."""
    index = Path(config.docs_dir, "results.md").read_text(encoding="utf-8")
    pages = re.findall(r"\]\((results/[\w-]+\.md)\)", index)
    config.nav = [
        {"Results": [{"In one sentence each": "results.md"}, *pages]} if item == "results.md" else item
        for item in config.nav or []
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated."""
    for path, text in {"method_list.md": method_list(), **api_pages()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(text: str, page: Page, **_: Any) -> str:
    """Return a page as Python-Markdown reads it."""
    folder = PurePosixPath("docs", page.file.src_uri).parent
    text = text.replace("<details><summary>", '<details markdown="1"><summary>')
    text = IN_TABLE.sub(lambda row: CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), text)
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
