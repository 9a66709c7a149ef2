"""Evaluate a fitted system, and store its predictions and scores."""

import math
import platform
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro import __version__
from bara_pyro.atomic import write_json, write_jsonl
from bara_pyro.core.gate_draws import GateDraws, gate_draws
from bara_pyro.data import EncodedRows, EncodedSplit, Task, batches, first_rows
from bara_pyro.data.clusters import together
from bara_pyro.data.labels import among_offered
from bara_pyro.data.replies import EncodedReplies
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import decompose, evaluate, posterior_predictive, sparsity_by_module, stack_truth
from bara_pyro.metrics.sparsity import over_modules
from bara_pyro.runs.config import parse_config
from bara_pyro.runs.evaluation_files import answer_rows, reply_rows
from bara_pyro.runs.manifest import CONFIG, METRICS, PREDICTIONS, check_kept, is_run
from bara_pyro.runs.ownership import adding, check_replaceable
from bara_pyro.runs.rows import OnRows, reading_notes
from bara_pyro.runs.system import System, parameter_counts
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import SCHEMA, RunFile

# Rows and draws used to measure the sparsity of the gates.
SPARSITY_ROWS, SPARSITY_DRAWS = 256, 10


def draw(
    system: System,
    split: EncodedRows,
    samples: int,
    *,
    repeats: int = 1,
    seed: int | None = None,
    on_rows: OnRows | None = None,
) -> Tensor:
    """Return log-probabilities of the rows of a split, `max(S, 1) x n x C`, float64, in the split's order.

    For replies the shape is `max(S, 1) x n`. Answers that a row does not offer have probability 0. A guide
    with its own predictive distribution determines the number of draws; see `predict`.
    """
    c = system.config.predict
    place = {row_id: i for i, row_id in enumerate(split.ids)}
    out = torch.empty(0)
    for batch in batches(split, system.answer_ids, c.batch_size, by_length=True):
        drawn = system.corrections.predict(
            system.model,
            system.guide,
            batch.to(system.backbone.device),
            samples=samples,
            repeats=repeats,
            seed=c.seed if seed is None else seed,
            memory_budget=c.memory_budget,
        )
        if not out.numel():
            out = drawn.new_empty(len(drawn), len(split), *drawn.shape[2:])
        out[:, [place[row_id] for row_id in batch.ids]] = drawn
        if on_rows is not None:
            on_rows(len(batch))
    return among_offered(out, split.offered) if isinstance(split, EncodedSplit) else out


def system_gates(
    system: System, rows: EncodedSplit, samples: int, *, modules: Sequence[str] | None = None
) -> GateDraws:
    """Return the gates of some rows of a fitted system, in their order, drawn with its configured seed.

    A method without random gates gives the posterior mean. `modules` are paths; None: all.
    """
    c = system.config.predict
    drawn = gate_draws(
        system.model,
        system.guide,
        batches(rows, system.answer_ids, c.batch_size, by_length=True),
        samples=samples if system.guide.stochastic else 0,
        seed=c.seed,
        modules=modules,
        memory_budget=c.memory_budget,
        corrected=partial(system.corrections.of_draws, system.model),
    )
    place = {row_id: i for i, row_id in enumerate(drawn.ids)}
    order = [place[row_id] for row_id in rows.ids]
    theta = None if drawn.theta is None else drawn.theta[:, order]
    return replace(drawn, ids=rows.ids, theta=theta, log_probs=drawn.log_probs[:, order])


def evaluate_system(
    system: System, out: str | Path | None = None, *, on_rows: OnRows | None = None, **extra: object
) -> Json:
    """Predict and score the configured split with each configured S; write predictions and metrics.

    Args:
        system: fitted.
        out: folder of the run; by default nothing is written.
        on_rows: called with the number of rows just done, times their draws.
        extra: further entries of metrics.json (for example `wall_clock_train_s`).

    Returns:
        The content of metrics.json: for each S `acc`, `ece` (percent), `nll` (nats), `brier`, `n`, ..; the
        accuracy of always answering the most frequent class (`majority_class`, percent); the sparsity of the
        gates (percent), parameter counts, versions, hardware, seed and configuration hash. For replies the
        metrics are those of `reply_scores`.

    Examples:
        >>> from pathlib import Path
        >>> import bara_pyro as bp
        >>> from bara_pyro.runs.evaluate import evaluate_system
        >>> run = bp.train(task="micro-wgs", method="lora", steps=2, limit=8, out="runs/lora")
        >>> report = evaluate_system(run, "runs/lora", remark="a try")
        >>> report["remark"], Path("runs/lora/metrics.json").exists()
        ('a try', True)
    """
    started = time.perf_counter()
    own_run = out is not None and is_run(Path(out))
    if out is not None:
        check_whose(system, Path(out))
        check_replaceable(Path(out), (PREDICTIONS, METRICS))
    name = system.config.task.evaluate_on
    split = system.encoded(name)
    if not isinstance(split, EncodedSplit):
        results, lines, sparsity = _of_replies(system, split, on_rows)
    else:
        results, lines, sparsity = _of_answers(system, split, name, on_rows)
    report = {
        "schema": SCHEMA,
        "method": system.config.method.name,
        "task": system.task.name,
        "split": name,
        "rows": split.fingerprint,
        **results,
        "sparsity": sparsity,
        "parameters": parameter_counts(system),
        "seed": system.config.seed,
        "config_hash": system.config.hash,
        "notes": [*system.task.notes, *reading_notes(system.config, system.backbone, split, name)],
        "environment": environment(),
        "wall_clock_evaluate_s": round(time.perf_counter() - started, 3),
        **extra,
    }
    if out is not None:
        if own_run:
            check_kept(Path(out))
        with adding(Path(out)) as place:
            write_jsonl(place / PREDICTIONS, lines)
            write_json(place / METRICS, report)
    return report


def check_whose(system: System, out: Path) -> None:
    """Raise a `ConfigError` if a folder is another run's, whose scores would be replaced."""
    if not is_run(out):
        return
    theirs = parse_config(read_json(out / CONFIG, RunFile)["config"], stored=True).with_memory(system.config)
    # Settings of training that change results must agree; settings of prediction may differ.
    for what in map(attrgetter, ("method", "adapter", "train", "seed", "task.name")):
        if what(system.config) != what(theirs):
            raise ConfigError(
                f"{out} is the folder of another run, whose scores would be replaced: give another folder."
            )


def _times_draws(on_rows: OnRows | None, samples: int) -> OnRows | None:
    """Return a function that counts each row once for each of its draws, which take the time."""
    return None if on_rows is None else lambda rows: on_rows(rows * max(samples, 1))


Evaluated = tuple[Json, list[Json], dict[str, float]]
"""Entries of metrics.json, lines of predictions.jsonl, the sparsity of the gates."""


def _of_answers(system: System, split: EncodedSplit, name: str, on_rows: OnRows | None) -> Evaluated:
    labels = torch.tensor(split.labels)
    truth = true_probabilities(system, split, name)
    predictive, epistemic = {}, {}
    scores = {}
    for samples in system.config.predict.samples:
        draws = draw(system, split, samples, on_rows=_times_draws(on_rows, samples))
        predictive[samples] = posterior_predictive(draws)
        epistemic[samples] = decompose(draws).epistemic
        scores[str(samples)] = evaluate(predictive[samples], labels, truth)
    report = {
        "metrics": scores,
        "classes": list(system.task.names or system.task.labels),
        "majority_class": majority_class(system.task, split),
    }
    examples = getattr(system.task, name)
    clusters = dict(zip((row.id for row in examples), together(examples), strict=True))
    lines = answer_rows(split, predictive, epistemic, system.task.names, clusters)
    return report, lines, _sparsity(system, split)


def _of_replies(system: System, split: EncodedReplies, on_rows: OnRows | None) -> Evaluated:
    log_probs = {}
    for samples in system.config.predict.samples:
        draws = draw(system, split, samples, on_rows=_times_draws(on_rows, samples))
        log_probs[str(samples)] = draws.logsumexp(0) - math.log(len(draws))  # a draw is for a whole reply
    scores = {s: reply_scores(values, split.counts) for s, values in log_probs.items()}
    return {"metrics": scores}, reply_rows(split, log_probs), {}


def reply_scores(log_probs: Tensor, tokens: Sequence[int]) -> dict[str, float]:
    """Score replies.

    Args:
        log_probs: float64, `n`: log-probabilities of replies, averaged over draws, in nats.
        tokens: number of tokens of each of the n replies, including the one that ends it.

    Returns:
        `nll`: nats per token, `-sum(log_probs) / sum(tokens)`; `perplexity`: its exponential; `nll_reply`:
        nats per reply; `n` and `tokens`: numbers of replies and tokens.
    """
    total = float(-log_probs.sum())
    nll = total / sum(tokens)
    perplexity = math.exp(nll) if nll < 700 else math.inf  # exp overflows above 709
    return {
        "nll": nll,
        "perplexity": perplexity,
        "nll_reply": total / len(tokens),
        "n": len(tokens),
        "tokens": sum(tokens),
    }


def true_probabilities(system: System, split: EncodedSplit, name: str) -> Tensor:
    """Return the true `p(answer | question)` of the rows of a split, `n x C`; NaN if unknown."""
    rows = {row.id: row for row in getattr(system.task, name)}
    return stack_truth([rows[row_id].truth for row_id in split.ids], len(system.task.labels))


def untrained_scores(system: System) -> dict[str, float]:
    """Score the language model without training on the test split; `system` must be untrained."""
    split = system.split("test")
    log_probs = posterior_predictive(draw(system, split, 0))
    return evaluate(log_probs, torch.tensor(split.labels), true_probabilities(system, split, "test"))


def truth_scores(system: System) -> dict[str, float] | None:
    """Score the true answer probabilities as if they were predictions; None if a row's are unknown."""
    known = truth_predictions(system)
    return None if known is None else evaluate(*known, known[0].exp())


def truth_predictions(system: System) -> tuple[Tensor, Tensor] | None:
    """Return the test split's true log-probabilities, `n x C`, and labels, `n`; None if any is unknown."""
    split = system.split("test")
    truth = true_probabilities(system, split, "test")
    return None if truth.isnan().any() else (truth.log(), torch.tensor(split.labels))


def majority_class(task: Task, split: EncodedSplit) -> Json:
    """Return the majority-class baseline: the most frequent class of the training rows, and its accuracy.

    It is `label`, the user's name of the class, and `acc` in percent. A task without training rows takes the
    most frequent class of `split`.
    """
    known = Counter(row.label for row in task.train) or Counter(split.labels)
    most = max(known, key=lambda label: (known[label], -label))
    share = 100 * split.labels.count(most) / len(split)
    return {"label": (task.names or task.labels)[most], "acc": share}


def _sparsity(system: System, split: EncodedSplit) -> dict[str, float]:
    """Return the expected percentage of gates below 0.1 for each kind of gate in the model."""
    if system.model.gates is None:
        return {}
    draws = system_gates(system, first_rows(split, SPARSITY_ROWS), SPARSITY_DRAWS)
    return {
        kind: over_modules(sparsity_by_module(gates, ranks=draws.ranks), draws.ranks)
        for kind, gates in draws.by_kind().items()
    }


def environment() -> Json:
    """Return versions and hardware, to store with a result."""
    packages = ("torch", "pyro-ppl", "transformers", "datasets", "numpy")
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        # `version` does not know bara-pyro if it is run from its sources.
        "versions": {"bara-pyro": __version__, **{name: version(name) for name in packages}},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": cuda,
    }
