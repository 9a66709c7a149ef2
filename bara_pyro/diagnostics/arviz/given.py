"""Accept a run, or a program with its guide and a batch of rows, as the source of exported draws."""

from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bara_pyro.core.attached import pair_of
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data import EncodedSplit, Example, Task
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.full_draws import Rows, wanted_rows
from bara_pyro.errors import ConfigError
from bara_pyro.posthoc.corrections import Corrections
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import System

Pair: TypeAlias = tuple[AdaptedLM, SiteGuide]
GIVEN = "given"  # name of the task and method of a (model, guide) pair, which is not a run


def looked_at(
    run: System | Pair | AdaptedLM, guide: SiteGuide | None, split: str, rows: Rows | Batch
) -> tuple[System, EncodedSplit]:
    """Return a run and the requested rows; arguments as for `to_inference_data`.

    Raises:
        ConfigError: `run` is neither a run nor a program with its guide, or `rows` does not fit it.
        DataError: a row is unknown.
    """
    if isinstance(run, System):
        if guide is not None or isinstance(rows, Batch):
            raise ConfigError(
                "A run has its own guide and rows: leave out guide, and give rows as a number or identifiers."
            )
        return run, wanted_rows(run, split, rows)
    if isinstance(run, AdaptedLM):
        if guide is None:
            raise ConfigError(f"{type(run).__name__} needs a guide: give (model, guide).")
        run = (run, guide)
    model, guide = pair_of(run)
    if not isinstance(rows, Batch):
        raise ConfigError(
            f"rows is {rows!r}, but (model, guide) has no rows of a run: give a batch, such as "
            "bp.encode(examples, tokenizer).batch(range(8), answer_ids)."
        )
    require_answer_tokens(model.likelihood, "Exported draws")
    return _as_run(model, guide, rows, split)


def _as_run(model: AdaptedLM, guide: SiteGuide, batch: Batch, split: str) -> tuple[System, EncodedSplit]:
    """Return a run with default settings that has the rows of a batch as its split."""
    tokens = [ids[mask].tolist() for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)]
    ids = batch.ids or tuple(map(str, range(len(batch))))
    labels = (-1,) * len(batch) if batch.labels is None else tuple(batch.labels.tolist())
    part = EncodedSplit(tuple(tokens), labels, ids, pad_id=0)
    texts = [_read(model, torch.tensor(row)) for row in tokens]
    examples: Any = tuple(Example(*row) for row in zip(ids, texts, labels, strict=True))
    names = tuple(_read(model, token.unsqueeze(0)).strip() or str(int(token)) for token in batch.answer_ids)
    task = replace(Task(GIVEN, names, names=names), **{split: examples})
    return System(
        load_config(), model.backbone, task, batch.answer_ids, model, guide, Corrections(model)
    ), part


def _read(model: AdaptedLM, tokens: Tensor) -> str:
    tokenizer = model.backbone.tokenizer
    return "" if tokenizer is None else str(tokenizer.decode(tokens.tolist()))
