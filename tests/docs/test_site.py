"""What the site has beyond docs/: the list of methods, the API of what is public, links out of it."""

import re
from pathlib import Path, PurePosixPath

import pytest

import bara_pyro
from bara_pyro.errors import DataError
from bara_pyro.methods import METHODS
from docs.tools import api_pages, method_list, site

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("[a](generation.md#b)", "data.md", "[a](generation.md#b)"),
        ("[a](../posterior.md)", "results/sbc.md", "[a](../posterior.md)"),
        ("[a](https://arxiv.org/abs/1804.06788)", "data.md", "[a](https://arxiv.org/abs/1804.06788)"),
        ("[a](#b) ![c](figures/sbc.png)", "data.md", "[a](#b) ![c](figures/sbc.png)"),
        (
            "[the list](../bara_pyro/extras/replies/sandbox/seccomp.py)",
            "data.md",
            "the list (`bara_pyro/extras/replies/sandbox/seccomp.py`)",
        ),
        ("[examples/plugin](../examples/plugin)", "data.md", "`examples/plugin`"),
        ("[a](../../pyproject.toml)", "results/sbc.md", "a (`pyproject.toml`)"),
        ("| `p(y \\| x)` \\| b | `c` |", "data.md", "| `p(y | x)` \\| b | `c` |"),
        ("`p(y \\| x)`", "data.md", "`p(y \\| x)`"),
        ("[a](notebooks/first_run.ipynb)", "data.md", "[a](notebooks/first_run.md)"),
    ],
)
def test_a_page_as_the_site_reads_it(text: str, path: str, expected: str) -> None:
    assert site.as_read(text, PurePosixPath("docs", path)) == expected


def test_a_file_that_is_not_there_is_an_error() -> None:
    link = site.LINK.search("[a](../examples/nothing)")
    assert link is not None
    with pytest.raises(DataError, match="examples/nothing"):
        site.outside(link, PurePosixPath("docs"))


def test_every_page_of_results_is_in_the_navigation() -> None:
    first, results = site.navigation(["index.md", "results.md"], (DOCS / "results.md").read_text())
    [(name, pages)] = results.items()
    assert (first, name) == ("index.md", "Results")
    assert {*pages[1:]} == {f"results/{path.name}" for path in (DOCS / "results").glob("*.md")}
    assert site.listed(["index.md", {"Results": [{"Overview": "results.md"}, "a.md"]}]) == [
        "index.md",
        "results.md",
        "a.md",
    ]


def test_only_a_site_is_replaced(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    with pytest.raises(DataError, match="holds no site"):
        site.build(tmp_path)
    assert kept.read_text() == "mine"


@pytest.mark.slow
def test_the_list_has_every_method_with_its_settings_and_parameters() -> None:
    page = method_list.method_list()
    rows = dict(re.findall(r"^\| \[`([\w-]+)`\]\(#\1\) \|(.*)$", page, flags=re.MULTILINE))
    assert {*rows} == {*METHODS}
    # Qwen2.5-7B: 28 query and 28 value projections and the output embedding, inputs of 3584, rank 8.
    a, b = 57 * 3584, 28 * 8 * (3584 + 512) + 8 * 152064
    assert f" {8 * a + b:,} " in rows["lora"]
    assert f" {16 * a + 57 * 16 + b:,} " in rows["bara"]
    assert "https://arxiv.org/abs/2606.29184" in rows["bara-gate"]
    for method in METHODS.values():
        section = page.split(f"{{ #{method.name} }}")[1].split("\n## ")[0]
        settings = re.findall(r"^\| `(\w+)` \| `(.*?)` \|", section, flags=re.MULTILINE)
        assert {name for name, _ in settings} == {*method.config.model_fields} - {"name"}
    assert '| `latent` | `"phi*theta"` |' in page.split("{ #bara-gate }")[1]


def test_a_method_without_remarks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "methods.md"
    notes.write_text("| name | model | posterior | loss |\n|---|---|---|---|\n")
    monkeypatch.setattr(method_list, "NOTES", notes)
    with pytest.raises(DataError, match="no row for the method lora"):
        method_list.method_list()


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ("LoRA by maximum likelihood (Hu et al., 2022)", "Hu et al., 2022"),
        ("ScalaBL: y = W0 x + s B diag(s) V x (UAI 2025)", "UAI 2025"),
        ("IVON (arXiv 2411.04421); needs ivon-opt", "[arXiv 2411.04421](https://arxiv.org/abs/2411.04421)"),
        ("Deep ensemble of LoRAs", "–"),
    ],
)
def test_where_a_method_was_published(summary: str, expected: str) -> None:
    assert method_list.paper(summary) == expected


def test_the_api_has_every_public_name_and_every_program() -> None:
    pages = api_pages.api_pages()
    assert {*re.findall(r"\[`(\w+)`\][\[(]", pages["api/index.md"])} == {*bara_pyro.__all__}
    assert "[`SVI`][bara_pyro.core.svi.SVI]" in pages["api/index.md"]
    assert "[`models`](models.md)" in pages["api/index.md"]
    programs, guides = pages["api/models.md"], pages["api/guides.md"]
    assert "::: bara_pyro.models.bara.BaRA\n" in programs
    assert "::: bara_pyro.guides.weibull.WeibullGuide\n" in guides
    assert "BaRAAdapter" not in programs  # no program by itself
    assert programs.count("models.lora.LoRA\n") == 1  # where it is defined, not where it is imported
