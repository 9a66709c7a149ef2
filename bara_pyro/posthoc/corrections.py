"""All corrections of a run: create them, fit them after training, and apply them to draws."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import require_answer_tokens, require_closed_set
from bara_pyro.core.observing import frozen_states, last_states
from bara_pyro.core.prediction import RecordedDraws, forwards, predict, record
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.split import first_batches
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import posterior_predictive
from bara_pyro.posthoc.distance import Distance
from bara_pyro.posthoc.one_pass import OnePass
from bara_pyro.posthoc.temperature import Temperature

# Largest numbers of rows for the fits: thousands are enough for a covariance, and each draw costs a forward.
MOST, MOST_DRAWN, DRAWS = 4096, 512, 32


class Corrections(nn.Module):
    """Corrections of a program's predictions, fitted after training; the program itself is not changed.

    Each draw's scores are divided by the temperature. Then `one_pass` makes the prediction without draws
    approximate the average of draws, and `distance` adds noise to the draws of rows far from the training
    rows.

    Args:
        model: the program.
        calibrated: use a temperature, see :class:`.Temperature`.
        distance_aware: add noise to out-of-distribution rows, see :class:`.Distance`.
        one_pass: make S = 0 approximate the average of draws, see :class:`.OnePass`.

    Raises:
        ConfigError: the likelihood has no closed set of answers, or answers of more than one token
            (`one_pass`).

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

    def __init__(
        self,
        model: AdaptedLM,
        *,
        calibrated: bool = False,
        distance_aware: bool = False,
        one_pass: bool = False,
    ) -> None:
        super().__init__()
        if calibrated:
            require_closed_set(model.likelihood, "Temperatures")
        if distance_aware:
            require_closed_set(model.likelihood, "Distance-aware predictions")
        if one_pass:
            require_answer_tokens(model.likelihood, "One-pass predictions")
        width = model.backbone.lm.get_output_embeddings().weight.shape[1]
        self.temperature = Temperature() if calibrated else None
        self.distance = Distance(width) if distance_aware else None
        self.one_pass = OnePass(width) if one_pass else None
        self.to(model.backbone.device)

    def check(self, model: AdaptedLM, guide: SiteGuide, method: str = "this program") -> None:
        """Check before training that the corrections can be fitted afterwards.

        Args:
            model: the program.
            guide: its guide.
            method: name of the method, for the error message.

        Raises:
            ConfigError: `one_pass` for a program without latents, or with a guide whose draws do not differ.
            DataError: there are too few training rows.
        """
        if self.one_pass is not None:
            _check_draws(model, guide, method)
        for part in (self.distance, self.one_pass):
            if part is not None:
                part.check_rows(model.num_data)

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
        """Fit the distance and one-pass corrections to training rows, without their labels.

        Args:
            model: the program.
            guide: its fitted guide.
            batches: training rows; the distance uses the first `MOST`, the one pass the first `MOST_DRAWN`.
            groups: name of each row's group, in the same order (`data.clusters.together`). Rows of a group
                are closer to one another than new rows will be. None: no groups.
            offered: which answers each row may choose, in the same order, bool, `n x C`; None: all.
            samples: number of draws whose average the one pass approximates.
            seed: seed of these draws.

        Returns:
            The results of both fits, with the prefixes `distance_` and `one_pass_`; empty without them.

        Raises:
            ConfigError: the guide's draws do not differ, or its posterior is not fitted yet.
            DataError: there are too few rows.
        """
        numbers: dict[str, float] = {}
        if self.distance is None and self.one_pass is None:
            return numbers
        known = list(first_batches(batches, MOST))
        if self.distance is not None:
            fitted = self._fit_distance(self.distance, model, guide, known, groups, offered)
            numbers |= {f"distance_{key}": value for key, value in fitted.items()}
        if self.one_pass is not None:
            known = list(first_batches(known, MOST_DRAWN))
            fitted = self._fit_one_pass(self.one_pass, model, guide, known, offered, samples, seed)
            numbers |= {f"one_pass_{key}": value for key, value in fitted.items()}
        return numbers

    def _fit_distance(
        self,
        distance: Distance,
        model: AdaptedLM,
        guide: SiteGuide,
        batches: Sequence[Batch],
        groups: Sequence[str] | None,
        offered: Tensor | None,
    ) -> dict[str, float]:
        states = torch.cat([frozen_states(model, batch) for batch in batches])
        points = torch.cat([self._tempered(predict(model, guide, b, samples=0))[0] for b in batches])
        points = _among(points, offered)
        return distance.fit(states, points, None if groups is None else groups[: len(points)])

    def _fit_one_pass(
        self,
        one_pass: OnePass,
        model: AdaptedLM,
        guide: SiteGuide,
        batches: Sequence[Batch],
        offered: Tensor | None,
        samples: int,
        seed: int,
    ) -> dict[str, float]:
        _check_draws(model, guide)
        if not guide.stochastic:
            raise ConfigError(
                f"The posterior of this {type(guide).__name__} is not fitted yet: fit it before one_pass."
            )
        with last_states(model) as noted:
            at_mean = [self._tempered(predict(model, guide, b, samples=0))[0] for b in batches]
        drawn = [self._tempered(predict(model, guide, b, samples=samples, seed=seed)) for b in batches]
        states = torch.cat(noted).float()
        average = posterior_predictive(_among(torch.cat(drawn, dim=1), offered).log_softmax(-1))
        # `predict` returns tensors on the CPU.
        return one_pass.fit(torch.cat(at_mean).to(states.device), states, average.to(states.device))

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
        last: int | None = None,
    ) -> Tensor:
        """Return corrected draws; arguments, shapes and errors are those of `core.prediction.predict`."""
        drawing = partial(predict, model, guide, batch, memory_budget=memory_budget)
        if samples == 0 and self.one_pass is not None and self.one_pass.fitted:
            with last_states(model) as noted:
                at_mean = self._tempered(drawing(samples=0))[0]
            states = torch.cat(noted)
            return self.one_pass(at_mean.to(states.device), states).cpu().unsqueeze(0)
        drawn = self._tempered(drawing(samples=samples, repeats=repeats, seed=seed, last=last))
        if samples == 0 or self.distance is None or not self.distance.fitted:
            return drawn
        drawn = drawn.repeat_interleave(-(-samples // len(drawn)), 0)  # repeats ensemble members
        numbers = torch.arange(len(drawn)) // repeats
        return self._spread(self.distance, model, batch, drawn, numbers, seed, memory_budget)

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
        """Yield `core.prediction.record` with corrected draws; the one pass does not change draws."""
        for piece in record(model, guide, batch, samples=samples, seed=seed, memory_budget=memory_budget):
            numbers = torch.arange(piece.draws.start, piece.draws.stop) if samples else None
            rows = batch.questions(piece.rows)
            yield replace(piece, log_probs=self.of_draws(model, rows, piece.log_probs, numbers, seed))

    def of_draws(
        self, model: AdaptedLM, batch: Batch, drawn: Tensor, numbers: Tensor | None = None, seed: int = 0
    ) -> Tensor:
        """Return corrected draws of a batch: `S x B x C`, float64, on the CPU.

        Args:
            model: the program.
            batch: the rows.
            drawn: uncorrected draws, `S x B x C`.
            numbers: numbers of the draws, long, `S`; None for the posterior mean.
            seed: seed of the draws.
        """
        drawn = self._tempered(drawn)
        if numbers is None or self.distance is None or not self.distance.fitted:
            return drawn
        return self._spread(self.distance, model, batch, drawn, numbers, seed)

    def stored(self) -> dict[str, nn.Parameter]:
        """Return the parameters by their names in a run's files."""
        return {name.removeprefix("temperature."): value for name, value in self.named_parameters()}

    def _tempered(self, drawn: Tensor) -> Tensor:
        return drawn if self.temperature is None else self.temperature(drawn)

    @staticmethod
    @torch.no_grad()
    def _spread(
        distance: Distance,
        model: AdaptedLM,
        batch: Batch,
        drawn: Tensor,
        numbers: Tensor,
        seed: int,
        memory_budget: int | None = None,
    ) -> Tensor:
        """Return the draws with the noise of the distance."""
        pieces = [batch.questions(rows) for rows in forwards(model, batch, memory_budget)]
        states = torch.cat([frozen_states(model, piece) for piece in pieces])
        return distance.noisy(drawn.to(states.device), states, numbers.to(states.device), seed).cpu()


def _check_draws(model: AdaptedLM, guide: SiteGuide, method: str = "this program") -> None:
    """Refuse `one_pass` for a program without latents or a guide whose draws will not differ."""
    if not (model.latents and guide.stochastic_once_fitted):
        raise ConfigError(
            f"one_pass (--one-pass) approximates the average of many draws, and {method} has none that "
            "differ: leave it out."
        )


def _among(log_probs: Tensor, offered: Tensor | None) -> Tensor:
    """Return log-probabilities, `... n x C`, with -inf for answers that a row does not offer."""
    if offered is None:
        return log_probs
    return log_probs.masked_fill(~offered[: log_probs.shape[-2]], -torch.inf)


def require_temperature(corrections: Corrections) -> Temperature:
    """Return the temperature of the corrections.

    Raises:
        ConfigError: they have none.
    """
    if corrections.temperature is None:
        raise ConfigError("The corrections have no temperature: create them with calibrated=True.")
    return corrections.temperature
