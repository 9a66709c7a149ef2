"""The paper's experiments with replies: best of n, programs, and the alignment tax, after UltraFeedback.

The paper shows them as figures without numbers; only the mean tax is in its text. Rows are read from
--data-dir, because the hub's AlpacaEval is a program, which is never run: DIR/ultrafeedback_binarized,
alpaca_eval/eval.jsonl, humaneval/test.jsonl and the folders of the OpenLLM tasks.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig

from bara_pyro.cli.terminal import Advance, progress
from bara_pyro.data.conversations import Conversation
from bara_pyro.errors import BaraError
from bara_pyro.extras.replies.generation import generate
from bara_pyro.extras.replies.generation.decoding import Decoding
from bara_pyro.extras.replies.generation.file import append_lines, lines_there, made_by, reply_lines
from bara_pyro.extras.replies.generation.humaneval import judge_programs, write_programs
from bara_pyro.extras.replies.generation.prompts import encode_prompts
from bara_pyro.extras.replies.generation.spread import diversity_of, token_entropy
from bara_pyro.extras.replies.reward import RewardModel, load_reward_model, score_replies
from bara_pyro.extras.replies.reward.model import LONGEST
from bara_pyro.extras.replies.reward.rows import row_of
from bara_pyro.extras.replies.sampling import best_of_n_win_rate, pass_at_k
from bara_pyro.extras.replies.sandbox import check_isolation, load_humaneval
from bara_pyro.lm.loading import load_tokenizer
from bara_pyro.report.table import Column
from bara_pyro.runs.system import System
from bara_pyro.types import Json, PredictiveName
from bara_pyro.untrusted.files import read_jsonl
from experiments.paper.protocol import Settings

TASK = "ultrafeedback"
JUDGE = "sfairXC/FsfairX-LLaMA3-RM-v0.1"
SETTINGS: Settings = {
    "task.likelihood": "completion",
    "task.max_length": 2048,
    "task.too_long": "drop",
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
OPEN = (
    "temperature 1, and the most tokens of a reply; neither is in the paper",
    "win rates are against the outputs in alpaca_eval; the paper compares with GPT-4's",
    "MMLU stands for two of its subjects, and `bara` tasks of lm-evaluation-harness for the leaderboard's",
)
Read = Callable[[Any], Any]
"""Takes a number, or one for each prompt, out of a record."""
COLUMNS: dict[Column, Read] = {
    Column("nll", "NLL of held-out replies", "nats a token", ".3f"): lambda r: score_of(r, "nll"),
    Column("win_1", "wins, n = 1", "%", ".1f"): lambda r: r["chat"]["best"][0],
    Column("win_n", "wins, best of all", "%", ".1f"): lambda r: r["chat"]["best"][-1],
    Column("diversity", "100 - Self-BLEU", format=".1f"): lambda r: r["chat"].get("diversity"),
    Column("pass_1", "pass@1", "%", ".1f"): lambda r: r["programs"]["best"][0],
    Column("pass_n", "pass@all", "%", ".1f"): lambda r: r["programs"]["best"][-1],
    Column("entropy", "entropy of programs", "nats a token"): lambda r: r["programs"]["entropy"],
    Column("tax", "tax", "points", "+.1f"): lambda r: tax_of(r["tax"]),
}
CAPTION = "AlpacaEval (wins), HumanEval (pass), OpenLLM tasks (tax: accuracy minus the base model's)"
BY_PROMPT: dict[Column, Read] = {
    Column("win_1", "wins, n = 1", "points"): lambda r: r["chat"]["one"],
    Column("win_n", "wins, best of all", "points"): lambda r: r["chat"]["all"],
    Column("pass_1", "pass@1", "points"): lambda r: r["programs"]["one"],
    Column("pass_n", "pass@all", "points"): lambda r: r["programs"]["all"],
}
CAPTION_BY_PROMPT = "Minus MLE [95 % interval over prompts and seeds; of one seed, over prompts]"


@dataclass(frozen=True)
class Replies:
    """What is asked of a fitted system.

    Attributes:
        judge: name of the reward model that judges replies.
        replies: for each prompt.
        new_tokens: the most of a reply.
        taxed: OpenLLM tasks of the tax.
        rows: the most prompts, problems, and rows of a taxed task; None: all.
    """

    judge: str = JUDGE
    replies: int = 32
    new_tokens: int = 512
    taxed: tuple[str, ...] = TAXED
    rows: int | None = None


def looked_at(system: System, out: Path, data: Path, asked: Replies) -> dict[str, Any]:
    """Return what a model writes and forgets, continuing what an interrupted run left.

    Args:
        system: fitted.
        out: folder of the run; replies, programs and their results are written to it as they come.
        data: folder of the rows.
        asked: how many replies, judged by what.

    Returns:
        `chat` and `programs`, each with `best` (percent, for n = 1 to `replies`), `one` and `all` (percent
        for each prompt, of one reply and of the best of all), `entropy` (nats a token) and, of two replies
        or more, `diversity`; `tax`: task -> accuracy in percent before and after; `judge`.
    """
    rows = _alpaca_eval(data, asked)
    problems = load_humaneval(data / "humaneval" / "test.jsonl")[: asked.rows]
    how = Decoding("each" if has_draws(system) else "mean", max_new_tokens=asked.new_tokens)
    with progress("write replies", len(rows) * asked.replies) as advance:
        chat = _written(system, [row["instruction"] for row in rows], out / "chat.jsonl", how, asked, advance)
    with progress("write programs", len(problems) * asked.replies) as advance:
        programs = write_programs(system, problems, out, how, replies=asked.replies, on_program=advance)
    with progress("run programs", len(programs)) as advance:
        judged = judge_programs(problems, programs, out, workers=1, on_program=advance)
    reward = reward_model(asked.judge, str(system.backbone.device))
    with progress("judge replies", len(rows) * (asked.replies + 1)) as advance:
        theirs = [(row["instruction"], row["output"]) for row in rows]
        ours = [(rows[int(line["id"])]["instruction"], line["reply"] or " ") for line in chat]
        scores = score_replies(reward, [*theirs, *ours], on_rows=advance).numpy().astype(float)
    wins = best_of_n_win_rate(scores[len(rows) :].reshape(len(rows), -1), scores[: len(rows)]).per_prompt
    passed = {(line["id"], line["number"]): float(line["passed"]) for line in judged}
    names = [problem.task_id for problem in problems]
    outcomes = [[passed[name, number] for number in range(asked.replies)] for name in names]
    return {
        "chat": {**_percent(wins), **_spread(chat)},
        "programs": {**_percent(pass_at_k(outcomes).per_prompt), **_spread(programs)},
        "tax": taxed(system, data, asked.taxed, asked.rows),
        "judge": {"name": asked.judge},
    }


def has_draws(system: System) -> bool:
    """Return whether a draw of the latents differs from their mean."""
    return system.guide.stochastic and bool(system.model.latents)


@lru_cache(maxsize=1)
def reward_model(name: str, device: str) -> RewardModel:
    """Return the judge, which the runs of a process share."""
    return load_reward_model(name, "float32" if device == "cpu" else "bfloat16", device)


def _alpaca_eval(data: Path, asked: Replies) -> list[Json]:
    return read_jsonl(data / "alpaca_eval" / "eval.jsonl")[: asked.rows]


def _written(
    system: System, texts: Sequence[str], file: Path, how: Decoding, asked: Replies, on_reply: Advance
) -> list[Json]:
    """Return the replies to each prompt, in order; those that the file has are not written again."""
    tokenizer = system.backbone.tokenizer
    encoded = encode_prompts(texts, tokenizer, chat=tokenizer.chat_template is not None)
    prompts = list(zip(encoded, texts, strict=True))
    there = lines_there(file, made_by(system, how, 0), prompts)
    on_reply(len(there))
    skip = {(line["id"], line["number"]) for line in there}
    append_lines(file, there, reply_lines(system, prompts, how, replies=asked.replies, skip=skip), on_reply)
    return sorted(read_jsonl(file), key=lambda line: (int(line["id"]), line["number"]))


def _percent(by_prompt: Any) -> dict[str, list[float]]:
    """Return the mean over prompts for each number of replies, and each prompt's values for one and all."""
    ends = {"one": by_prompt[:, 0], "all": by_prompt[:, -1]}
    return {"best": by_prompt.mean(0).tolist(), **{key: np.round(of, 4).tolist() for key, of in ends.items()}}


def _spread(lines: Sequence[Json]) -> Json:
    """Return the diversity of the replies to a prompt, and the entropy of their tokens."""
    texts: dict[str, list[str]] = {}
    for line in lines:
        texts.setdefault(line["id"], []).append(line["reply"] or ".")
    return {**token_entropy(lines), **diversity_of(list(texts.values()))}


def taxed(system: System, data: Path, tasks: Sequence[str], rows: int | None) -> dict[str, dict[str, float]]:
    """Return the accuracy on each taxed task (percent) of the language model before and after."""
    from bara_pyro.extras.lmeval.harness import BaraLM, evaluate_tasks  # an extra

    drawn = has_draws(system)
    samples = max(system.config.predict.samples)
    found: dict[str, dict[str, float]] = {}
    predictives: dict[str, PredictiveName] = {"before": "base", "after": "joint" if drawn else "mean"}
    for when, predictive in predictives.items():
        lm = BaraLM(system, predictive, samples, batch_size=8)
        for task, scores in evaluate_tasks(lm, tasks, data_dir=data, limit=rows)["results"].items():
            right = next(scores[key] for key in ACCURACY if key in scores)
            found.setdefault(task.removeprefix("bara_"), {})[when] = 100 * float(right)
    return found


def described(record: Any) -> str:
    """Return how many prompts and problems a run was asked, and who judged."""
    prompts, problems = (len(record[kind]["one"]) for kind in ("chat", "programs"))
    replies = len(record["chat"]["best"])
    asked = f"{prompts} prompts of AlpacaEval and {problems} problems of HumanEval, {replies} replies to each"
    return f"{asked}. Judge: {record['judge']['name']}. Rows: {'; '.join(record['notes'])}.\n"


def score_of(record: Any, metric: str) -> Any:
    """Return a score under the most draws."""
    return record["metrics"][max(record["metrics"], key=int)][metric]


def seconds_a_token(system: System, tokens: int = 16) -> float:
    """Return the seconds that a token of a reply takes, eight replies at a time."""
    drawn = "each" if has_draws(system) else "mean"
    begun = time.perf_counter()
    written = generate(system.model, system.guide, ["Once"], replies=8, draws=drawn, max_new_tokens=tokens)
    count = sum(len(reply.token_ids) for reply in written)
    return (time.perf_counter() - begun) / count


def tax_of(found: dict[str, dict[str, float]]) -> float:
    """Return the mean change in accuracy, in points."""
    return float(np.mean([scores["after"] - scores["before"] for scores in found.values()]))


def missing(data: Path | None, asked: Replies) -> list[str]:
    """Return what this table lacks here, of its rows, its judge, lm-eval and the sandbox."""
    if data is None:
        return ["the table 'alignment' reads its rows from a folder: give --data-dir"]
    files = ("alpaca_eval/eval.jsonl", "humaneval/test.jsonl")
    found = [f"{data / file} is missing" for file in files if not (data / file).exists()]
    if asked.rows == 1:
        found.append("--test-rows 1 leaves one prompt, too few for an interval: give 2 or more")
    try:
        check_isolation()
        _check_tasks(data, asked.taxed)
        found += _unread(data, asked) if not found else []
    except BaraError as error:
        found.append(str(error))
    except (OSError, ValueError) as error:
        folder = "" if Path(asked.judge).exists() else "it is no folder here, and "
        found.append(f"the judge {asked.judge} cannot be read: {folder}{str(error).partition(chr(10))[0]}")
    return found


def _check_tasks(data: Path, tasks: Sequence[str]) -> None:
    """Raise an error if lm-eval is missing, or the rows of a taxed task."""
    from bara_pyro.extras.lmeval.harness.local import filled  # an extra

    with filled(tasks, data):
        return


def _unread(data: Path, asked: Replies) -> list[str]:
    """Return why the judge cannot score replies."""
    config = AutoConfig.from_pretrained(asked.judge, trust_remote_code=False)
    kinds = config.architectures or ()
    if kinds and all(kind.endswith("ForCausalLM") for kind in kinds):
        return [
            f"the judge {asked.judge} is a language model ({kinds[0]}): give a reward model, a classifier "
            "with one output"
        ]
    tokenizer = load_tokenizer(asked.judge)
    if asked.new_tokens >= LONGEST:
        return [f"the judge {asked.judge} reads {LONGEST} tokens: give --new-tokens below that"]
    for number, row in enumerate(_alpaca_eval(data, asked), 1):
        pair = Conversation(row["instruction"], row["output"], str(number))
        if row_of(pair, tokenizer, LONGEST) is None:
            return [
                f"the judge {asked.judge} reads {LONGEST} tokens, fewer than row {number} of AlpacaEval's "
                "outputs: give another judge, or fewer --test-rows"
            ]
    return []
