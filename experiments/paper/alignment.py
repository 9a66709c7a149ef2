"""The paper's experiments with replies: best of n, programs, and the alignment tax, after UltraFeedback.

The paper shows them as figures without numbers; only the mean tax is in its text. Rows are read from --data,
because the hub's AlpacaEval is a program, which is never run: DATA/ultrafeedback_binarized,
alpaca_eval/eval.jsonl, humaneval/test.jsonl and the folders of the OpenLLM tasks.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig

from bara_pyro.errors import SandboxError
from bara_pyro.extras.replies.generation import Reply, generate
from bara_pyro.extras.replies.generation.prompts import encode_prompts
from bara_pyro.extras.replies.reward import RewardModel, load_reward_model, score_replies
from bara_pyro.extras.replies.sandbox import check_isolation, judge, load_humaneval
from bara_pyro.extras.replies.sandbox.humaneval import STOP_SEQUENCES
from bara_pyro.metrics import pass_at_k_per_problem, self_bleu_diversity, win_rate_per_prompt
from bara_pyro.report import Column
from bara_pyro.runs.system import System
from bara_pyro.types import PredictiveName
from bara_pyro.untrusted.files import read_jsonl
from experiments.paper.protocol import Settings

TASK = "ultrafeedback"
JUDGE = "sfairXC/FsfairX-LLaMA3-RM-v0.1"
REPLIES, NEW_TOKENS = 32, 512
SETTINGS: Settings = {
    "task.likelihood": "completion",
    "task.max_length": 2048,
    "train.steps": None,
    "train.epochs": 2.0,
}
TAXED = (
    "arc_challenge",
    "gsm8k",
    "hellaswag",
    "mmlu_college_chemistry",
    "mmlu_college_physics",
    "truthfulqa_mc1",
    "winogrande",
)
ACCURACY = ("acc,none", "exact_match,strict-match")
FEW = 8  # replies a prompt that Self-BLEU is of: its time grows with their square
OPEN = (
    "temperature 1 and at most 512 tokens a reply; neither is in the paper",
    "win rates are against the outputs in DATA/alpaca_eval; the paper compares with GPT-4's",
    "MMLU stands for two of its subjects, and `bara` tasks of lm-evaluation-harness for the leaderboard's",
)
COLUMNS: dict[Column, Callable[[Any], float]] = {
    Column("win_1", "wins, n = 1", "%", ".1f"): lambda r: r["chat"]["best"][0],
    Column("win_n", "wins, best of all", "%", ".1f"): lambda r: r["chat"]["best"][-1],
    Column("diversity", "100 - Self-BLEU", format=".1f"): lambda r: r["chat"]["diversity"],
    Column("pass_1", "pass@1", "%", ".1f"): lambda r: r["programs"]["best"][0],
    Column("pass_n", "pass@all", "%", ".1f"): lambda r: r["programs"]["best"][-1],
    Column("entropy", "entropy of programs", "nats"): lambda r: r["programs"]["entropy"],
    Column("tax", "tax", "points", "+.1f"): lambda r: tax_of(r["tax"]),
}
CAPTION = "AlpacaEval (wins), HumanEval (pass), OpenLLM tasks (tax: accuracy minus the base model's)"


def looked_at(
    system: System, data: Path, name: str, replies: int, new_tokens: int, rows: int | None
) -> dict[str, Any]:
    """Return what a model writes and forgets.

    Args:
        system: fitted.
        data: folder of the rows.
        name: of the reward model that judges replies.
        replies: for each prompt.
        new_tokens: the most of a reply.
        rows: the most prompts, problems, and rows of a taxed task; None: all.

    Returns:
        `chat` and `programs`, each with `best` (percent, for n = 1 to `replies`), `diversity` and `entropy`
        (nats a token); `tax`: task -> accuracy in percent before and after; `judge`.
    """
    asked = read_jsonl(data / "alpaca_eval" / "eval.jsonl")[:rows]
    problems = load_humaneval(data / "humaneval" / "test.jsonl")[:rows]
    reward = reward_model(name, str(system.backbone.device))
    instructions = [row["instruction"] for row in asked]
    tokenizer = system.backbone.tokenizer
    prompts = encode_prompts(instructions, tokenizer, chat=tokenizer.chat_template is not None)
    theirs = score_replies(reward, [(row["instruction"], row["output"]) for row in asked]).tolist()
    chat = written(system, prompts, replies, new_tokens)
    scores = [
        score_replies(reward, [(prompt, reply.text or " ") for reply in own]).tolist()
        for prompt, own in zip(instructions, chat, strict=True)
    ]
    programs = written(system, [problem.prompt for problem in problems], replies, new_tokens, STOP_SEQUENCES)
    texts = [(p.task_id, reply.text) for p, own in zip(problems, programs, strict=True) for reply in own]
    passed = {one.index: float(one.outcome.passed) for one in judge(problems, texts, workers=1)}
    outcomes = np.array([passed[i] for i in range(len(texts))]).reshape(len(problems), replies)
    return {
        "chat": {"best": win_rate_per_prompt(scores, theirs).mean(0).tolist(), **_spread(chat)},
        "programs": {
            "best": pass_at_k_per_problem(outcomes, range(1, replies + 1)).mean(0).tolist(),
            **_spread(programs),
        },
        "tax": taxed(system, data, rows),
        "judge": {"name": name, "held_out": reward.held_out},
    }


@lru_cache(maxsize=1)
def reward_model(name: str, device: str) -> RewardModel:
    """Return the judge, which the runs of a process share."""
    return load_reward_model(name, "float32" if device == "cpu" else "bfloat16", device)


def written(
    system: System, prompts: Sequence[Any], replies: int, new_tokens: int, stop: Sequence[str] = ()
) -> list[list[Reply]]:
    """Return the replies to each prompt; each has its own draw if the method has draws."""
    drawn = system.guide.stochastic and bool(system.model.latents)
    found: dict[str, list[Reply]] = {}
    for reply in generate(
        system.model,
        system.guide,
        prompts,
        replies=replies,
        draws="each" if drawn else "mean",
        max_new_tokens=new_tokens,
        stop=stop,
    ):
        found.setdefault(reply.prompt, []).append(reply)
    return list(found.values())


def _spread(written: Sequence[Sequence[Reply]]) -> dict[str, float]:
    """Return the diversity of replies, and minus the log-probability of a token (nats)."""
    texts = [[reply.text or "." for reply in own[:FEW]] for own in written]
    tokens = [log_prob for own in written for reply in own for log_prob in reply.log_probs]
    several = len(texts[0]) > 1
    diversity = float(self_bleu_diversity(texts).per_prompt.mean()) if several else 0.0
    return {"diversity": diversity, "entropy": -float(np.mean(tokens))}


def taxed(system: System, data: Path, rows: int | None) -> dict[str, dict[str, float]]:
    """Return the accuracy on each taxed task (percent) of the language model before and after."""
    from bara_pyro.extras.lmeval.harness import BaraLM, evaluate_tasks  # an extra

    drawn = system.guide.stochastic and bool(system.model.latents)
    samples = max(system.config.predict.samples)
    found: dict[str, dict[str, float]] = {}
    predictives: dict[str, PredictiveName] = {"before": "base", "after": "joint" if drawn else "mean"}
    for when, predictive in predictives.items():
        lm = BaraLM(system, predictive, samples, batch_size=8)
        for task, scores in evaluate_tasks(lm, TAXED, data_dir=data, limit=rows)["results"].items():
            right = next(scores[key] for key in ACCURACY if key in scores)
            found.setdefault(task.removeprefix("bara_"), {})[when] = 100 * float(right)
    return found


def tax_of(found: dict[str, dict[str, float]]) -> float:
    """Return the mean change in accuracy, in points."""
    return float(np.mean([scores["after"] - scores["before"] for scores in found.values()]))


def missing(data: Path | None, name: str) -> list[str]:
    """Return what this table lacks here, of its rows, its judge and the sandbox."""
    if data is None:
        return ["the table 'alignment' reads its rows from a folder: give --data"]
    files = ("alpaca_eval/eval.jsonl", "humaneval/test.jsonl")
    found = [f"{data / file} is missing" for file in files if not (data / file).exists()]
    try:
        check_isolation()
        AutoConfig.from_pretrained(name, trust_remote_code=False)
    except SandboxError as error:
        found.append(str(error))
    except (OSError, ValueError) as error:
        found.append(f"the judge {name} cannot be read: {str(error).partition(chr(10))[0]}")
    return found
