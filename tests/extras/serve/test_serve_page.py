"""The examples of docs/serve.md: the application that Python makes answers what curl asks, as is shown."""

import json
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed: pip install 'bara-pyro[serve]'")
pytest.importorskip("httpx2", reason="starlette's TestClient needs httpx2")

from fastapi.testclient import TestClient

PAGE = (Path(__file__).parents[3] / "docs" / "serve.md").read_text()


def test_the_examples(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(run, tmp_path / "runs" / "reviews")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(block, "docs/serve.md", "exec"), names)
    assert names["answer"]["label"] in names["answer"]["probs"]
    [path, body] = re.search(r"8000(/\w+) .*?-d '(.*?)'", PAGE, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    shown = json.loads(re.search(r'    (\{"samples".*?"notes": \[\]\})', PAGE, flags=re.DOTALL)[1])  # type: ignore[index]
    with TestClient(names["app"], base_url="http://models.example") as client:
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"}).json()
    assert answer.keys() == shown.keys()
    assert [row.keys() for row in answer["rows"]] == [row.keys() for row in shown["rows"]]
    assert [row["id"] for row in answer["rows"]] == [row["id"] for row in shown["rows"]]
    assert answer["samples"] == shown["samples"]
