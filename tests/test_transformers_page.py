"""The examples of docs/transformers.md run in order, with fewer steps and rows, and learn."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")

PAGE = Path(__file__).parents[1] / "docs" / "transformers.md"
SHORT = {
    "max_steps=200": 'max_steps=60, disable_tqdm=True, save_strategy="no", dataloader_pin_memory=False',
    "(task.train, task.test)": "(task.train[:128], task.test[:64])",
}


@pytest.mark.slow
def test_the_examples_run_and_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    for old, new in SHORT.items():
        assert old in text
        text = text.replace(old, new)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    history = [logged for logged in names["trainer"].state.log_history if "nll" in logged]
    assert history[-1]["nll"] < history[0]["nll"]
    assert {"loss", "nll", "kl_phi", "kl_theta", "grad_norm", "learning_rate"} <= history[0].keys()
    said = capsys.readouterr().out
    assert "eval_accuracy" in said
    assert said.count("the guest lives in") == 4
