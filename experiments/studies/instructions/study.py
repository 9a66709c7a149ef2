"""Best of n, diversity and alignment tax of a real language model that learnt to follow instructions.

    bara backbone get smollm2 --out runs/smollm2
    bara reward train --model runs/smollm2 --task ultrafeedback --data-dir FOLDER --out runs/judge
        --max-length 768 --head-only --epochs 3
    python -m experiments instructions --model runs/smollm2 --data-dir FOLDER --judge runs/judge --seeds 3

SmolLM2-135M learns the chosen replies of UltraFeedback that, with their prompts, take at most 256 tokens, in
two epochs, every method with its default settings, and replies to the first prompts of AlpacaEval whose
instruction and reference output take at most `--max-new-tokens` tokens each, because its replies are cut
there. FOLDER/alpaca_eval/eval.jsonl holds them: `instruction`, `output`. The reward model compares a reply
with the reference output; how often it agrees with held-out preferences stands with the results.

The tax is accuracy on tasks of lm-evaluation-harness (the extra `lm-eval`), rows from FOLDER.
`--set backbone.states_folder=runs/states` keeps what the layers below the adapters give a row for all runs.
On a processor that multiplies bfloat16 fast, add `--set backbone.dtype=bfloat16`.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bara_pyro.data.tokens import Tokenizer
from bara_pyro.errors import DataError
from bara_pyro.extras.replies.generation.prompts import encode_prompts
from bara_pyro.extras.replies.reward import Agreement, RewardModel, load_reward_model, score_replies
from bara_pyro.lm.loading import load_tokenizer
from bara_pyro.untrusted.files import read_jsonl
from experiments.engine.arguments import option
from experiments.engine.replies import Look, Sampling, harness_tax
from experiments.engine.results import Results
from experiments.page.replies import smollm2_study
from experiments.page.spec import shared_facts

# Up to 1 score and diversity rise together, in a first look: a frontier needs hotter ones.
TEMPERATURES = (0.7, 1.0, 1.3)
TAXED = (
    "arc_challenge",
    "hellaswag",
    "mmlu_college_chemistry",
    "mmlu_college_physics",
    "truthfulqa_mc1",
    "winogrande",
)


def look(args: Namespace) -> Look:
    """Return what is looked at.

    Raises:
        BackboneError: the reward model cannot be read.
        DataError: there are not so many prompts of that length.
    """
    tokenizer, file = load_tokenizer(args.model), args.data_dir / "alpaca_eval" / "eval.jsonl"
    rows = short_rows(file, tokenizer, args.prompts, args.max_new_tokens)
    judge = load_reward_model(args.judge)
    return Look(
        sampling(rows, judge, tokenizer, args.max_new_tokens),
        harness_tax(args.data_dir, args.taxed, args.taxed_rows, args.taxed_samples),
        {"prompts": args.prompts, "tokens": args.max_new_tokens, "judge": judge.held_out}
        | {"taxed": list(args.taxed), "taxed_rows": args.taxed_rows, "taxed_samples": args.taxed_samples},
    )


def short_rows(file: Path, tokenizer: Tokenizer, count: int, longest: int) -> list[dict[str, Any]]:
    """Return the first rows whose instruction and output take at most so many tokens each."""
    rows = read_jsonl(file)
    short = [
        row
        for row in rows
        if max(len(tokenizer(row[key])["input_ids"]) for key in ("instruction", "output")) <= longest
    ]
    if len(short) < count:
        raise DataError(f"{file} has {len(short)} such rows of {longest} tokens at most, not {count}.")
    return short[:count]


def sampling(
    rows: Sequence[dict[str, Any]], judge: RewardModel, tokenizer: Tokenizer, longest: int
) -> Sampling:
    """Return the prompts, and whether the judge prefers a reply to the reference output (1, a tie 0.5, or 0).

    The expected best of n of these is the win rate of the reply that the judge likes best among n.
    """
    asked = [row["instruction"] for row in rows]
    theirs = score_replies(judge, [(row["instruction"], row["output"]) for row in rows]).tolist()

    def score(place: int, replies: Sequence[str]) -> list[float]:
        # An empty reply is one of the end of the text alone; the judge has to see some reply.
        ours = score_replies(judge, [(asked[place], reply or " ") for reply in replies], batch_size=16)
        return [(1 + (s > theirs[place]) - (s < theirs[place])) / 2 for s in ours.tolist()]

    return Sampling(encode_prompts(asked, tokenizer, chat=True), score, TEMPERATURES, longest)


SETUP = """\
SmolLM2-135M learnt the chosen replies of UltraFeedback of at most 256 tokens with their prompts ({steps:,}
steps of four, {seeds}). Methods have their default settings and adapters in the upper three of 30 blocks
and the output layer. They write {replies} replies to {prompts} of AlpacaEval's 805 prompts, the first whose
instruction and reference output take at most {tokens} tokens each, at temperatures of {temperatures}. Each
reply has its own posterior draw, or all use the posterior mean ("mean").

- **Score**: the percentage of prompts for which a reward model prefers the best of n replies to the
  reference output of text_davinci_003, unbiased over all subsets. The paper compares with GPT-4's outputs.
  The judge {judge_says}.
- **Diversity**: 100 - Self-BLEU. **Entropy**: minus the log probability of a sampled token, in nats.
- **Tax**: accuracy on the first {taxed_rows} rows of {taxed_names} by lm-evaluation-harness, with
  {taxed_samples} draws. Of the paper's six OpenLLM tasks, {missing} are missing.
- **Intervals** (`95 %`) are crossed over seeds and prompts for differences at one temperature, and over
  prompts for frontiers and budgets.
"""
# The paper's tasks, and how the harness's tasks of each begin.
OPENLLM = {
    "ARC": "arc_",
    "GSM8K": "gsm8k",
    "HellaSwag": "hellaswag",
    "MMLU": "mmlu_",
    "TruthfulQA": "truthfulqa_",
    "WinoGrande": "winogrande",
}


def facts(results: Results) -> dict[str, Any]:
    """Return what the question names."""
    taxed: list[str] = results.about["taxed"]
    missing = [name for name, start in OPENLLM.items() if not any(task.startswith(start) for task in taxed)]
    return {
        **shared_facts(results),
        "judge_says": Agreement(**results.about["judge"]).sentence(),
        "taxed_names": ", ".join(taxed),
        "missing": ", ".join(missing) or "none",
    }


STUDY = smollm2_study(
    "instructions",
    __doc__,
    "Do posterior draws improve a real language model's replies?",
    SETUP,
    look,
    replies=8,
    options={
        "--judge": {"type": Path, "required": True, "metavar": "DIR", "help": "reward model"},
        "--prompts": option(32, "how many", metavar="N"),
        "--max-new-tokens": option(
            64,
            "where a reply is cut, and the most that an instruction and its reference may take",
            metavar="N",
        ),
        "--taxed": option(TAXED, "tasks that the tax is of", metavar="TASK"),
        "--taxed-rows": option(50, "rows of each task that the tax is of", metavar="N"),
        "--taxed-samples": option(4, "draws", metavar="S"),
    },
    facts=facts,
)
