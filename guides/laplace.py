r"""Laplace-LoRA (Yang et al., ICLR 2024, arXiv 2308.13111): a Gaussian around trained LoRA weights.

prior       A, B ~ Normal(0, 1 / lambda), one lambda for all weights
posterior   A, B ~ Normal(trained weights, Sigma), Sigma^-1 = F + lambda I, F from `bara_pyro.methods.laplace`
predictive  logits ~ Normal(f(x), J Sigma J^T), J the Jacobian in the weights (the linearised model)
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.modules import module_key
from bara_pyro.core.noise import noise_seed
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, check_choice
from bara_pyro.guides.kronecker import Factors, KroneckerPosterior
from bara_pyro.guides.linearisation import Linearisation
from bara_pyro.guides.point import PointGuide
from bara_pyro.models.gaussian_lora import GaussianLoRA

Subset = Literal["all", "last"]
Predictive = Literal["glm", "probit", "sampled"]


class LaplaceGuide(PointGuide):
    """Point mass during training; the Laplace approximation around it once fitted.

    `bara_pyro.methods.laplace.fit_laplace` fits it. In the answer head only the rows of B that belong to
    answers have curvature; the other rows keep their prior.

    Args:
        model: `GaussianLoRA(random="AB")`.
        subset: "all" matrices, or only those of the "last" layer, the answer head; the rest stay a point.
        mode: "glm": the linearised predictive, softmax averaged over `logit_samples` draws of the logits
            (antithetic pairs, seeded by row). "probit": a closed-form approximation of "glm": MacKay's for
            two answers, and for more answers MacKay's applied to each pair. "sampled": draws of the weights
            through the network. They underfit, as Immer et al. (2021) explain: on the microworld accuracy
            falls from 75 to 49 %.
        logit_samples: minimum number of logit draws per row.
        max_gigabytes: largest size of factors and eigenvectors, in GB.

    Raises:
        ConfigError: the model is not `GaussianLoRA(random="AB")` without flipout, or a setting is invalid.
    """

    def __init__(
        self,
        model: GaussianLoRA,
        *,
        subset: Subset = "all",
        mode: Predictive = "glm",
        logit_samples: int = 5000,
        max_gigabytes: float = 16.0,
    ) -> None:
        super().__init__(model)
        check_choice("subset", subset, Subset)
        check_choice("predictive", mode, Predictive)
        require_answer_tokens(model.likelihood, "Laplace approximations")
        if model.weights != ("lora_A", "lora_B") or model.flipout or logit_samples < 1:
            raise ConfigError(
                f"The Laplace approximation needs random='AB' without flipout, and logit_samples="
                f"{logit_samples} must be at least 1."
            )
        self.mode = mode
        self.logit_samples = logit_samples
        self.max_gigabytes = max_gigabytes
        self.adapters = tuple(a for a in model.adapters.values() if subset == "all" or a.target.is_head)
        # The linearisation keeps the graph: the activations of all layers at once instead of one layer's.
        layers = getattr(model.backbone.lm.config.get_text_config(), "num_hidden_layers", 4)
        self.copies = 4 if model.backbone.checkpointing else max(4, int(layers))
        if not self.adapters:
            raise ConfigError(
                "subset='last' needs an adapter at the output embedding: add it to target_modules."
            )
        # Empty until a posterior is fitted or loaded; a tuple, because Pyro does not look into tuples.
        self._posterior: tuple[KroneckerPosterior, ...] = ()

    def distribution(self, name: str) -> TorchDistribution:
        """Return the posterior of a deviation; a point mass before the fit and outside the subset."""
        fit = self._posterior[0] if self._posterior else None
        if fit is None or module_key(name) not in fit.blocks:
            return super().distribution(name)
        return fit.distribution(name, self.model.latents.global_sites[name].shape)

    def check_size(self, answers: int) -> None:
        """Refuse Kronecker factors that need too much memory.

        Args:
            answers: number of answers of the task.

        Raises:
            ConfigError: they take more than `max_gigabytes`.
        """
        # A factor is held in float64, its eigenvectors in float32.
        sides = [side for size in self._sizes(answers).values() for side in size]
        need = sum(side**2 for side in sides) * 12 / 1e9
        if need > self.max_gigabytes:
            raise ConfigError(
                f"The Kronecker factors need {need:.1f} GB, more than max_gigabytes="
                f"{self.max_gigabytes:g}: choose subset=last or fewer target_modules."
            )

    def _sizes(self, answers: int) -> dict[str, tuple[int, int]]:
        """Return site -> `out x in` for every matrix that gets a block."""
        sizes = {}
        for a in self.adapters:
            rows = answers if a.target.is_head else a.target.out_features
            sizes[a.target.site("lora_A")] = (a.r, a.target.in_features)
            sizes[a.target.site("lora_B")] = (rows, a.r)
        return sizes

    def prepare(self, saved: dict[str, Tensor]) -> None:
        """Allocate the parameters of a saved posterior, before they are loaded."""
        answers = saved.get("posterior.answers")
        if answers is not None:
            self._allocate(len(answers))

    def _allocate(self, answers: int) -> KroneckerPosterior:
        fit = KroneckerPosterior(self._sizes(answers), answers, self.model.backbone.device)
        self.posterior = fit
        self._posterior = (fit,)
        self.stochastic = self.mode == "sampled"
        return fit

    @torch.no_grad()
    def set_posterior(self, factors: dict[str, Factors], answers: Tensor) -> Tensor:
        """Store the curvature of the likelihood; call `set_precision` afterwards.

        Args:
            factors: site -> factors; emptied while it is read, to free memory.
            answers: token ids of the answers, the rows of the head's B that have curvature.

        Returns:
            The eigenvalues of the curvature, float64.
        """
        fit = self._allocate(len(answers))
        fit.answers.copy_(answers)
        sites = list(factors)
        for site in sites:
            fit.block(site).set(factors.pop(site))
        return torch.cat([fit.block(site).eigenvalues().flatten() for site in sites])

    @torch.no_grad()
    def set_precision(self, precision: float) -> None:
        """Set the precision lambda of the prior."""
        self._fitted().precision.fill_(precision)

    def _fitted(self) -> KroneckerPosterior:
        if not self._posterior:
            raise ConfigError(
                "This guide has no Laplace approximation yet: train with the method laplace first."
            )
        return self._posterior[0]

    def linearised(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return mean and covariance of the logits in the linearised model, float64, `B x C` and `B x C x C`.

        Logits are centred: their mean over the answers, on which no probability depends, is subtracted. The
        batch may have answers that the fit did not see; their rows of B in the answer head have the prior.

        Raises:
            ConfigError: no posterior has been fitted.
        """
        fit = self._fitted()
        same = fit.answers == batch.answer_ids.unsqueeze(-1)
        known, places = same.any(-1), same.int().argmax(-1)
        point = Linearisation(self.model, self, self.adapters, batch)
        heads = {a.target.site("lora_B") for a in self.adapters if a.target.is_head}
        classes = len(batch.answer_ids)
        centring = torch.eye(classes, device=point.log_probs.device) - 1 / classes
        covariance = torch.zeros(
            len(batch), classes, classes, dtype=torch.float64, device=point.log_probs.device
        )
        jacobians: dict[str, list[Tensor]] = {site: [] for site in point.inputs}
        unknown: list[Tensor] = []
        for direction in centring:
            for site, g in point.gradients(direction).items():
                block = fit.block(site)
                # The Jacobian in the basis in which the posterior is diagonal. Rotate after the sum over
                # tokens, because there are more tokens than ranks.
                jacobian = g.mT @ point.inputs[site]
                if site in heads:
                    unknown.append(jacobian[:, ~known])
                    jacobian = jacobian.new_zeros(len(batch), len(fit.answers), jacobian.shape[-1]).index_add(
                        1, places[known], jacobian[:, known]
                    )
                jacobians[site].append(block.output_vectors.mT @ jacobian @ block.input_vectors)
        for site, columns in jacobians.items():
            scale = (fit.block(site).eigenvalues() + fit.precision).rsqrt()
            rows = (torch.stack(columns, dim=1).double() * scale).flatten(2)
            covariance += rows @ rows.mT
        if unknown:
            rows = torch.stack(unknown, dim=1).double().flatten(2)
            covariance += rows @ rows.mT / fit.precision
        return point.log_probs.detach().double() @ centring.double(), covariance

    @property
    def stochastic_once_fitted(self) -> bool:
        """Whether weights will be drawn; the linearised modes draw logits."""
        return self.mode == "sampled"

    @property
    def joint(self) -> bool:
        """Whether all rows share a draw: they do if weights are drawn, but not in the linearised modes."""
        return self.mode == "sampled"

    def predictive(self, batch: Batch, samples: int, seed: int) -> Tensor | None:
        """Return log-probabilities under the linearised posterior, `S x B x C`; None if weights are drawn.

        S = 0 returns None as well: the prediction of the trained weights. For S >= 1 the draws of the logits
        are sorted by the probability that they give to the answer of the trained weights and cut into S
        groups of equal size; each returned draw is the average of one group. The average over the S draws is
        thus the average over all logit draws, for every S. The spread between groups is epistemic
        uncertainty, slightly underestimated.
        """
        if not (samples and self._posterior) or self.mode == "sampled":
            return None
        mean, covariance = (value.cpu() for value in self.linearised(batch))
        if self.mode == "probit":
            return _probit(mean, covariance).expand(samples, -1, -1)
        return torch.stack(list(self._groups(mean, covariance, batch.ids, samples, seed)), dim=1)

    def _groups(
        self, mean: Tensor, covariance: Tensor, ids: tuple[str, ...], samples: int, seed: int
    ) -> Iterator[Tensor]:
        """Yield for each row the log of the groups' mean probabilities, `S x C`."""
        values, vectors = torch.linalg.eigh(covariance)
        roots = vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2) @ vectors.mT
        pairs = math.ceil(self.logit_samples / (2 * samples)) * samples
        for row, row_id in enumerate(ids):
            generator = torch.Generator().manual_seed(noise_seed(seed, f"logits/{row_id}"))
            noise = torch.randn(pairs, mean.shape[-1], generator=generator, dtype=torch.float64) @ roots[row]
            log_probs = (mean[row] + torch.cat([noise, -noise])).log_softmax(-1)
            order = log_probs[:, mean[row].argmax()].argsort()
            grouped = log_probs[order].unflatten(0, (samples, -1))
            yield grouped.logsumexp(1) - math.log(grouped.shape[1])


def _probit(mean: Tensor, covariance: Tensor) -> Tensor:
    """Approximate log E softmax of Gaussian logits: `B x C`, from mean `B x C` and covariance `B x C x C`.

    1 / p_k = sum_j exp(z_j - z_k), with each difference shrunk as in MacKay's (1992) rule for two answers.
    """
    difference = mean.unsqueeze(-2) - mean.unsqueeze(-1)  # entry k, j: z_j - z_k
    variances = covariance.diagonal(dim1=-2, dim2=-1)
    variance = (variances.unsqueeze(-1) + variances.unsqueeze(-2) - 2 * covariance).clamp_min(0.0)
    return (-(difference / (1 + math.pi / 8 * variance).sqrt()).logsumexp(-1)).log_softmax(-1)
