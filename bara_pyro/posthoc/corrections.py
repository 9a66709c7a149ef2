"""All corrections of a run: create them, fit them after training, and apply them to draws."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.observing import last_states
from bara_pyro.core.prediction import RecordedDraws, predict, record
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.split import first_batches
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, unknown
from bara_pyro.posthoc.correction import Correction, PredictedRows, TrainingRows
from bara_pyro.posthoc.distance import Distance
from bara_pyro.posthoc.one_pass import OnePass
from bara_pyro.posthoc.temperature import Temperature

# All corrections, in the order in which they are fitted and applied.
CORRECTIONS: tuple[type[Correction], ...] = (Temperature, Distance, OnePass)
# Largest number of rows to fit to, of which thousands are enough for a covariance; draws in an average.
MOST, DRAWS = 4096, 32


class Corrections(nn.Module):
    """Corrections of a program's predictions, fitted after training; the program itself is not changed.

    Each draw's scores are divided by the temperature. Then `distance` adds noise to the draws of rows far
    from the training rows, and `one_pass` makes the prediction without draws approximate the average of
    draws without this noise.

    Args:
        model: the program.
        options: the corrections to switch on: `calibrated=True` (:class:`.Temperature`),
            `distance_aware=True` (:class:`.Distance`), `one_pass=True` (:class:`.OnePass`).

    Raises:
        ConfigError: an option is unknown, or the likelihood has no closed set of answers, or answers of more
            than one token (`one_pass`).

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.posthoc.corrections import Corrections
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> train = bp.encode(task.train[:40], backbone.tokenizer)
        >>> model = bp.models.BaRA(backbone, num_data=40, form="gate")
        >>> guide = bp.guides.WeibullGuide(model)  # train model and guide before the next line
        >>> corrections = Corrections(model, distance_aware=True)
        >>> corrections.fit(model, guide, bp.batches(train, answers, 20))["distance_rows"]
        40
        >>> corrections.predict(model, guide, train.batch(range(4), answers), samples=10).shape
        torch.Size([10, 4, 2])
    """

    temperature: Temperature | None
    distance: Distance | None
    one_pass: OnePass | None

    def __init__(self, model: AdaptedLM, **options: bool) -> None:
        super().__init__()
        known = {kind.option: kind for kind in CORRECTIONS}
        if others := options.keys() - known:
            raise ConfigError(unknown("correction", others.pop(), known))
        width = model.backbone.lm.get_output_embeddings().weight.shape[1]
        for option, kind in known.items():
            part = kind(width) if options.get(option) else None
            if part is not None:
                part.requires(model.likelihood, part.subject)
            setattr(self, kind.name, part)
        self.to(model.backbone.device)

    @property
    def parts(self) -> list[Correction]:
        """The corrections that are switched on, in the order in which they are applied."""
        return cast(list[Correction], list(self.children()))

    def check(self, model: AdaptedLM, guide: SiteGuide, method: str = "this program") -> None:
        """Check before training that the corrections can be fitted afterwards; `method` is for the message.

        Raises:
            ConfigError: `one_pass` for a program without latents, or with a guide whose draws do not differ.
            DataError: there are too few training rows.
        """
        for part in self.parts:
            part.check(model, guide, model.num_data, method)

    def fit(
        self,
        model: AdaptedLM,
        guide: SiteGuide,
        batches: Iterable[Batch],
        *,
        groups: Sequence[str] | None = None,
        offered: Tensor | None = None,
        samples: int = DRAWS,
        seed: int = 0,
    ) -> dict[str, float]:
        """Fit the corrections to training rows, without their labels.

        Args:
            model: the program.
            guide: its fitted guide.
            batches: training rows, of which the first `MOST` are used.
            groups: name of each row's group, in the same order (`data.clusters.together`). Rows of a group
                are closer to one another than new rows will be. None: no groups.
            offered: which answers each row may choose, in the same order, bool, `n x C`; None: all.
            samples: number of draws whose average `one_pass` approximates.
            seed: seed of these draws.

        Returns:
            The results of all fits, with the names of the corrections as prefixes, such as `distance_`.

        Raises:
            ConfigError: the guide's draws do not differ, or its posterior is not fitted yet.
            DataError: there are too few rows.
        """
        before = Corrections(model)
        for part in self.parts:
            if not part.fewest:
                setattr(before, part.name, part)
        known, drawing = list(first_batches(batches, MOST)), partial(before.predict, model, guide)
        rows = TrainingRows(model, guide, drawing, known, groups, offered, samples, seed)
        results: dict[str, float] = {}
        for part in self.parts:
            part.check(model, guide, sum(map(len, known)))
            results |= {f"{part.name}_{key}": value for key, value in part.fit(rows).items()}
        return results

    @torch.no_grad()
    def predict(
        self,
        model: AdaptedLM,
        guide: SiteGuide,
        batch: Batch,
        *,
        samples: int = 10,
        repeats: int = 1,
        seed: int = 0,
        memory_budget: int | None = None,
    ) -> Tensor:
        """Return corrected draws; arguments, shapes and errors are those of `core.prediction.predict`."""
        drawing = partial(predict, model, guide, batch, memory_budget=memory_budget)
        reading = samples == 0 and any(part.fitted and part.reads_last_states for part in self.parts)
        with ExitStack() as stack:
            noted = stack.enter_context(last_states(model)) if reading else []
            drawn = drawing(samples=samples, repeats=repeats, seed=seed)
        states = torch.cat(noted) if reading else None
        numbers = torch.arange(len(drawn) * -(-samples // len(drawn))) // repeats if samples else None
        return self._corrected(drawn, PredictedRows(model, batch, numbers, seed, memory_budget, states))

    def record(
        self,
        model: AdaptedLM,
        guide: SiteGuide,
        batch: Batch,
        *,
        samples: int = 10,
        seed: int = 0,
        memory_budget: int | None = None,
    ) -> Iterator[RecordedDraws]:
        """Yield `core.prediction.record` with corrected draws, which `one_pass` does not change."""
        for piece in record(model, guide, batch, samples=samples, seed=seed, memory_budget=memory_budget):
            numbers = torch.arange(piece.draws.start, piece.draws.stop) if samples else None
            rows = batch.questions(piece.rows)
            yield replace(piece, log_probs=self.of_draws(model, rows, piece.log_probs, numbers, seed))

    def of_draws(
        self, model: AdaptedLM, batch: Batch, drawn: Tensor, numbers: Tensor | None = None, seed: int = 0
    ) -> Tensor:
        """Return the corrected draws of a batch: `S x B x C`, float64, on the CPU.

        `numbers` are those of the draws, long, `S`; None for the posterior mean.
        """
        return self._corrected(drawn, PredictedRows(model, batch, numbers, seed))

    def stored(self) -> dict[str, nn.Parameter]:
        """Return the parameters by their names in a run's files."""
        return {name.removeprefix("temperature."): value for name, value in self.named_parameters()}

    @torch.no_grad()
    def _corrected(self, draws: Tensor, rows: PredictedRows) -> Tensor:
        for part in self.parts:
            if part.fitted:
                draws = part.correct(draws, rows)
        return draws


def require_temperature(corrections: Corrections) -> Temperature:
    """Return the temperature of the corrections; a `ConfigError` if they have none."""
    if corrections.temperature is None:
        raise ConfigError("The corrections have no temperature: create them with calibrated=True.")
    return corrections.temperature
