"""Posterior-predictive draws: S draws in one batched forward pass, reproducible row by row.

The noise of a draw depends only on the seed, the draw's number, the row's identifier, the token's position
and the site. It does not depend on the batch, on padding, or on the number and grouping of the draws
(`bara_pyro.core.noise`).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from numbers import Integral
from weakref import WeakKeyDictionary

import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.guide import SiteGuide, check_guide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.modules import value_of
from bara_pyro.core.noise import CounterNoise
from bara_pyro.core.posterior import Addressed, PosteriorMean, addresses_of
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.resuming import narrowed, shared
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.fast.kept_memory import keep_freed

# Bytes of activations per forward pass. Accelerators are fastest with large matrices. On a CPU each forward
# has a fixed cost, and small products are slow, so up to CPU_TOKENS tokens may exceed the budget. Measured at
# hidden sizes 128, 576 and 896: benchmarks/README.md.
ACCELERATOR_BUDGET, CPU_BUDGET, CPU_TOKENS, CPU_MOST = 2**31, 2**26, 1536, 2**28

# Replacements of `run` by guide, with bitwise equal results: see `bara_pyro.fast.predictions`.
REPLAYED: WeakKeyDictionary[SiteGuide, Callable[..., Tensor]] = WeakKeyDictionary()


def predict(
    model: AdaptedLM,
    guide: SiteGuide,
    batch: Batch,
    *,
    samples: int = 10,
    repeats: int = 1,
    seed: int = 0,
    memory_budget: int | None = None,
) -> Tensor:
    """Return posterior-predictive draws of the answers' log-probabilities.

    Args:
        model: the program.
        guide: its fitted guide.
        batch: B rows; `labels` are ignored.
        samples: number S of draws; 0 uses the posterior means of the latents (the paper's NonLoRA limit).
        repeats: number of consecutive draws that share the global latents, of which there are then S /
            repeats draws. Use these nested draws with `bara_pyro.metrics.decompose_nested`.
        seed: seed of the draws. All rows and all batches share the draws of the global latents.
        memory_budget: approximate bytes for the activations of one forward pass; larger batches are split.
            Default: 2 GiB on an accelerator; on a CPU 64 MiB or the size of 1,536 tokens, up to 256 MiB.

    Returns:
        Log-probabilities, float64, `max(S, 1) x B x C`; other likelihoods may return another shape in place
        of C. A guide with its own `predictive` determines the number of draws. Average them with
        `bara_pyro.metrics.posterior_predictive` (average probabilities, not logits).

    Raises:
        ConfigError: `samples` is negative or not a multiple of `repeats`, or the guide belongs to another
            model.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.core.prediction import predict
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> rows = bp.encode(task.test[:4], backbone.tokenizer)
        >>> model = bp.models.BaRA(backbone, num_data=640, form="gate")
        >>> draws = predict(model, bp.guides.WeibullGuide(model), rows.batch(range(4), answers), samples=10)
        >>> draws.shape, bool((draws.exp().sum(-1) - 1 < 1e-9).all())  # S x B x C
        (torch.Size([10, 4, 2]), True)
        >>> bp.metrics.posterior_predictive(draws).shape
        torch.Size([4, 2])
    """
    batch, room = _checked(model, guide, batch, samples, memory_budget)
    if repeats < 1 or samples % repeats:
        raise ConfigError(
            f"samples={samples} must be a multiple of repeats={repeats}, which must be at least 1."
        )
    predicted = _own(guide, batch, samples, seed, room)
    if predicted is not None:
        return predicted
    if samples and not (model.latents and guide.stochastic):
        # No latents (LoRA) or a point posterior: one forward pass gives all draws.
        point = predict(model, guide, batch, samples=0, memory_budget=memory_budget)
        return point.expand(samples, *point.shape[1:])
    out = torch.empty(0)
    for rows, draws in _pieces(model, len(batch), max(samples, 1), room):
        piece = batch.questions(rows)
        part = _forward(model, guide, piece, draws, samples, seed, repeats, every_token=False)
        if not out.numel():
            out = part.new_empty(max(samples, 1), len(batch), *part.shape[2:])
        out[draws, rows] = part
    return out


@dataclass(frozen=True)
class RecordedDraws:
    """Draws of one forward pass, for s of the S draws and b of the B rows.

    Attributes:
        rows, draws: slices of the batch's rows and of the S draws.
        mask: real tokens, bool, `b x T`, padded on the left.
        log_probs: float64, `s x b x C`.
        values: site -> draws: `s x 1 x modules x r` for `phi`, `s x b x T x r` for a local site (T = 1 at the
            answer head; 0 above a module's rank). With S = 0 the posterior mean, without the dimension s.
    """

    rows: slice
    draws: slice
    mask: Tensor
    log_probs: Tensor
    values: dict[str, Tensor]


def record(
    model: AdaptedLM,
    guide: SiteGuide,
    batch: Batch,
    *,
    samples: int = 10,
    seed: int = 0,
    memory_budget: int | None = None,
) -> Iterator[RecordedDraws]:
    """Yield the latents of the draws that `predict` returns, one forward pass at a time.

    Arguments and errors are those of `predict`; a guide's own `predictive` is not used.
    """
    batch, room = _checked(model, guide, batch, samples, memory_budget)
    for rows, draws in _pieces(model, len(batch), max(samples, 1), room):
        piece = batch.questions(rows)
        with PROGRAM, poutine.trace() as recorder:
            log_probs = _forward(model, guide, piece, draws, samples, seed)
        nodes = recorder.trace.nodes
        if missed := [name for name in model.latents.sites if name not in nodes]:
            raise ConfigError(
                f"The {type(model.likelihood).__name__} never uses the layer of the latent {missed[0]!r}: "
                "leave that layer out of target_modules (--target-modules)."
            )
        values = {name: value_of(nodes[name]) for name in model.latents.sites}
        for name in model.gates.theta.values() if model.gates else ():
            values[name] = F.pad(values[name], (0, model.r - values[name].shape[-1]))
        yield RecordedDraws(rows, draws, piece.attention_mask.bool(), log_probs, values)


def forwards(model: AdaptedLM, batch: Batch, memory_budget: int | None = None) -> list[slice]:
    """Return slices of a batch's rows that fit one forward pass each; see `predict` for the budget."""
    return _chunks(len(batch), _room(model, batch, memory_budget))


def _is_count(number: object) -> bool:
    return not isinstance(number, bool) and isinstance(number, Integral) and int(number) >= 0


def _checked(
    model: AdaptedLM, guide: SiteGuide, batch: Batch, samples: int, memory_budget: int | None
) -> tuple[Batch, int]:
    """Return the batch with identifiers, and the number of sequences that fit one forward pass."""
    check_guide(guide, model)
    model.backbone.check()
    if not _is_count(samples):
        raise ConfigError(f"samples={samples!r} must be a whole number: 0 (posterior mean) or more.")
    if not batch.ids:
        # Number the rows before the batch is split: a row's noise must not depend on the piece.
        batch = replace(batch, ids=tuple(map(str, range(len(batch)))))
    width = batch.input_ids.shape[1]
    if batch.past is None and batch.segments is None:
        model.backbone.check_room(width, "A row")
    return batch, _room(model, batch, memory_budget)


def _room(model: AdaptedLM, batch: Batch, memory_budget: int | None) -> int:
    """Return the number of sequences that fit one forward pass."""
    width = batch.input_ids.shape[1]
    each = _bytes_per_row(model, batch, width)
    if memory_budget is None:
        on_cpu = batch.input_ids.device.type == "cpu"
        if on_cpu and "batched_draws" in model.backbone.shortcuts:
            keep_freed()
        few = min(each * (CPU_TOKENS // width), CPU_MOST)
        memory_budget = max(CPU_BUDGET, few) if on_cpu else ACCELERATOR_BUDGET
    return max(1, memory_budget // each)


def _pieces(model: AdaptedLM, rows: int, draws: int, room: int) -> Iterator[tuple[slice, slice]]:
    """Split rows and draws into pieces of at most `room` sequences; the draws of a row stay consecutive."""
    together = draws if "batched_draws" in model.backbone.shortcuts else 1
    for part in _chunks(rows, max(1, room // together)):
        for chunk in _chunks(draws, min(together, room)):
            yield part, chunk


def _own(guide: SiteGuide, batch: Batch, samples: int, seed: int, room: int) -> Tensor | None:
    """Return the guide's own predictive, `room` sequences at a time; None if the guide has none."""
    parts = []
    for rows in _chunks(len(batch), max(1, room // guide.copies)):
        part = guide.predictive(batch.questions(rows), samples, seed)
        if part is None:
            return None
        parts.append(part)
    return torch.cat(parts, dim=1)


def point_log_probs(model: AdaptedLM, guide: SiteGuide, batch: Batch, *, every_token: bool = True) -> Tensor:
    """Return the answers' log-probabilities at the posterior mean, `B x C` (`M x B x C` for an ensemble).

    One forward pass of all rows; the result is float64, on the CPU. Without `every_token` the last layer runs
    for the scored tokens only, and taps do not see the others.
    """
    return _forward(model, guide, batch, slice(0, 1), 0, 0, every_token=every_token)[0]


@torch.no_grad()
def _forward(
    model: AdaptedLM,
    guide: SiteGuide,
    batch: Batch,
    chunk: slice,
    samples: int,
    seed: int,
    repeats: int = 1,
    every_token: bool = True,
) -> Tensor:
    device = batch.input_ids.device
    noise = addresses_of(batch, seed, chunk, repeats, model.latents.local_shapes) if samples else None
    # A shared prefix needs equal keys and values, which local latents would make differ by row.
    alike = not (samples and model.latents.local_sites)
    # A stranger's program may sample more than latents.
    with PROGRAM, torch.random.fork_rng([device] if device.type == "cuda" else []):
        if every_token:  # each row is run from its beginning, so that taps see all tokens
            values = run(model, guide, batch, noise, every_token=True)
        else:
            values = REPLAYED.get(guide, run)(model, guide, batch, noise, alike=alike)
        predicted = model.likelihood.predicted(values).cpu()
    return predicted if samples else predicted.unsqueeze(0)


def run(
    model: AdaptedLM,
    guide: SiteGuide,
    batch: Batch,
    noise: CounterNoise | None,
    *,
    alike: bool = False,
    every_token: bool = False,
) -> Tensor:
    """Run the program under a posterior; return the likelihood's result, `[draws x] B x ...`.

    Args:
        model: the program.
        guide: its guide.
        batch: the rows.
        noise: noise of the draws; None for the posterior mean.
        alike: read a prefix that all rows share once.
        every_token: run the last layer for all tokens.
    """
    with ExitStack() as stack:
        if noise is None:
            stack.enter_context(PosteriorMean(guide))
        else:
            stack.enter_context(pyro.plate("draws", len(noise.draws), dim=-3))
            stack.enter_context(Addressed(guide, noise))
        rows = shared(model, batch) if alike else batch
        return model.forward(rows if every_token else narrowed(model, rows))


def _chunks(total: int, step: int) -> list[slice]:
    return [slice(i, min(i + step, total)) for i in range(0, total, step)]


def _bytes_per_row(model: AdaptedLM, batch: Batch, width: int) -> int:
    """Estimate the bytes of activations alive at once for one sequence."""
    config = model.backbone.lm.config.get_text_config()
    hidden = getattr(config, "hidden_size", 1024)
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    heads = getattr(config, "num_attention_heads", 1)
    size = torch.empty((), dtype=model.backbone.dtype).element_size()
    per_token = 8 * hidden + 3 * inner + heads * width
    gates = 6 * model.r * len(model.targets)
    scored = max(batch.asked)
    logits = 8 * scored * getattr(config, "vocab_size", 1) if scored > 1 else 0
    return width * (per_token * size + 4 * gates) + logits
