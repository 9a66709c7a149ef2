"""Runs with weights that were drawn, not trained, and rows of lm-eval's tasks in words that the toy knows."""

from pathlib import Path
from typing import Any

import torch
from app_cases import Place, questions, write_rows
from lm_eval.api.instance import Instance

from bara_pyro.runs.system import System, build_system

CONTEXTS = (
    "is the fox red ? Answer:",
    "the owl is grey \n is the owl red ? Answer:",
    "the hen",
    "is the cat blue ? A) the cat B) the cow Answer:",
)
CONTINUATIONS = (" yes", " no", " is blue", " the bee is green")
PAIRS = [(context, continuation) for context in CONTEXTS for continuation in CONTINUATIONS]


def system_of(place: Place, method: str, seed: int = 0, **settings: object) -> System:
    """A run whose adapters and posterior are far from their start."""
    system = build_system(place.config(**{"method__name": method, **settings}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in system.model.named_parameters():
            if name.endswith("lora_B"):
                value.copy_(0.3 * torch.randn(value.shape, generator=generator))
        for value in system.guide.parameters():
            if value.requires_grad and value.is_floating_point():
                value.add_(0.3 * torch.randn(value.shape, generator=generator))
    return system


def asked(pairs: Any, kind: str = "loglikelihood") -> list[Instance]:
    return [Instance(kind, {}, tuple(pair), i) for i, pair in enumerate(pairs)]


def write_tasks(folder: Path, rows: int = 12) -> Path:
    """Rows of every task there is a file for, in the layouts of the hub."""
    asked = questions()[:rows]
    letters = {"text": ["yes", "no", "is the fox"], "label": ["A", "B", "C"]}
    arc = [
        {"id": q["id"], "question": q["question"], "choices": letters, "answerKey": "AB"[q["answer"] == "no"]}
        for q in asked
    ]
    for name in ("arc_easy", "arc_challenge"):
        for split in ("train", "validation"):
            write_rows(folder / name / f"{split}.jsonl", arc)
    write_rows(
        folder / "openbookqa" / "validation.jsonl",
        [
            {"id": r["id"], "question_stem": r["question"], **{k: r[k] for k in ("choices", "answerKey")}}
            for r in arc
        ],
    )
    write_rows(
        folder / "winogrande_s" / "validation.jsonl",
        [
            {
                "sentence": "the fox is the cat ? _ is red",
                "option1": "the fox",
                "option2": f"the {word}",
                "answer": "12"[i % 2],
            }
            for i, word in enumerate(("cat", "owl", "bee", "ant", "cow", "pig"))
        ],
    )
    write_rows(
        folder / "boolq" / "validation.jsonl",
        [
            {"question": q["question"], "answer": q["answer"] == "yes", "passage": f"the {q['question']}"}
            for q in asked
        ],
    )
    write_rows(
        folder / "hellaswag" / "validation.jsonl",
        [
            {
                **{
                    "ind": i,
                    "activity_label": "fox",
                    "ctx_a": q["question"],
                    "ctx_b": "the owl",
                    "label": str(i % 2),
                },
                **{"ctx": f"{q['question']} the owl", "endings": ["is red [title] yes", "is the  cat"]},
            }
            for i, q in enumerate(asked)
        ],
    )
    truths = {"choices": ["yes", "no", "is the fox"], "labels": [1, 0, 0]}
    write_rows(
        folder / "truthful_qa" / "validation.jsonl",
        [{"question": q["question"], "mc1_targets": truths, "mc2_targets": truths} for q in asked],
    )
    for subject in ("chemistry", "physics"):
        for split in ("dev", "test"):
            write_rows(
                folder / f"mmlu_college_{subject}" / f"{split}.jsonl",
                [
                    {"question": q["question"], "choices": ["A", "B", "yes", "no"], "answer": i % 4}
                    for i, q in enumerate(asked)
                ],
            )
    for split in ("train", "test"):
        write_rows(
            folder / "gsm8k" / f"{split}.jsonl",
            [{"question": q["question"], "answer": "yes #### 3"} for q in asked],
        )
    return folder
