"""The examples of docs/data.md, and the tasks that docs/contributing.md registers, run and learn."""

import re
from pathlib import Path

import pytest

from bara_pyro.data import registry
from bara_pyro.data.reply_tasks import REPLY_TASKS, load_replies
from bara_pyro.runs.evaluate import untrained_scores
from bara_pyro.runs.system import build_system

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_the_examples_run_in_order_and_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for known in (registry.TASKS, REPLY_TASKS):
        monkeypatch.setattr(known, "_items", dict(known))
    # Words that the small model knows, so that there is something to learn.
    places = ("spring", "summer", "autumn", "winter")
    rows = [
        (f"in {place} number {i % 20}", "very good" if place < "su" else "very bad")
        for i in range(30)
        for place in places
    ]
    (tmp_path / "reviews.csv").write_text(
        "text;label\n" + "".join(f"{text};{label}\n" for text, label in rows)
    )
    names: dict = {}
    text = (DOCS / "data.md").read_text() + (DOCS / "contributing.md").read_text().partition(
        "generates the rows"
    )[2]
    for block in re.findall(r"```python\n(.*?)```", text.partition("## Add a study")[0], flags=re.DOTALL):
        bundled = block.replace("runs/smollm2", "microworld")  # which needs no download
        exec(compile(bundled, "page", "exec"), names)
    assert names["task"].names == ("very bad", "very good")
    untrained = build_system(names["run"].config, task=names["task"])
    assert names["report"]["metrics"]["10"]["nll"] < untrained_scores(untrained)["nll"]
    made = load_replies("counting", seed=1)
    assert (len(made.train), len(made.test)) == (40, 20)
    for row in (*made.train, *made.test):
        start = int(str(row.prompt).split()[3])
        assert row.reply.split() == [str(start + 1), str(start + 2)]
    assert names["answers"].rows[0]["label"] in names["task"].names
