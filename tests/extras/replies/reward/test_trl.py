"""A judge that TRL trained is scored on the tokens that it was trained on."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from reward_cases import save_lm
from torch.testing import assert_close

from bara_pyro.extras.replies.reward import load_reward_model, score_replies

trl = pytest.importorskip("trl")
PAIRS = [("the fox is", " red good", " blue"), ("the hen", " is blue", " is good red cat")]


def message(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated", "ignore:'pin_memory' argument")
@pytest.mark.parametrize(("template", "pad"), [(False, "<pad>"), (False, None), (True, "<pad>")])
def test_trls_judge_reads_the_same_tokens(template: bool, pad: str | None, tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "chosen": chosen, "rejected": other} for prompt, chosen, other in PAIRS]
    if template:
        roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
        rows = [{name: message(roles[name], text) for name, text in row.items()} for row in rows]
    trainer = trl.RewardTrainer(
        str(save_lm(tmp_path / "lm", template=template, pad=pad)),
        trl.RewardConfig(str(tmp_path / "runs"), max_steps=1, bf16=False, report_to="none"),
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "judge"))
    reward = load_reward_model(tmp_path / "judge")
    read = trainer.train_dataset
    with torch.no_grad():
        expected = [
            trainer.model(torch.tensor([row[f"{side}_ids"]])).logits[0, 0]
            for row in read
            for side in ("chosen", "rejected")
        ]
    replies = [(prompt, reply) for prompt, *sides in PAIRS for reply in sides]
    assert_close(score_replies(reward, replies), torch.stack(expected), rtol=1e-5, atol=1e-5)
