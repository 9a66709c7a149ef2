"""Evidence lower bound (ELBO) with analytic KL terms, and its parts."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import torch
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceMeanField_ELBO
from pyro.poutine.messenger import unwrap
from pyro.poutine.runtime import Message
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import kl_divergence

from bara_pyro.core.distributions import has_analytic_kl
from bara_pyro.core.foreign import AUXILIARY
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.latents import UNWEIGHTED
from bara_pyro.core.likelihood import LIKELIHOOD
from bara_pyro.core.modules import distribution_of, family_name, value_of
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.terms import ElboTerms, check_stored, mean_terms, total
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError, MissingKLError


class MeanFieldELBO(TraceMeanField_ELBO):
    """`TraceMeanField_ELBO` that requires analytic KL terms and skips needless log-densities.

    If no KL is registered, Pyro's class silently estimates it from one draw; this class raises an error.
    Pyro's class also evaluates each latent's density under prior and posterior even if the KL is analytic;
    those densities are infinite for a draw that underflowed to 0. The estimator is unbiased although
    `q(theta)` is autoregressive over the layers, because no prior depends on an upstream latent.

    Args:
        sampled_kl: estimate a KL from one draw if no analytic KL is registered.
        num_particles: number of draws that each evaluation averages.

    Raises:
        ConfigError: `num_particles` is below 1.

    Examples:
        >>> import bara_pyro as bp
        >>> import torch
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.train[:8], backbone.tokenizer).batch(range(8), answers)
        >>> model = bp.models.BaRA(backbone, num_data=8, latent="phi")  # global gates only
        >>> terms = bp.MeanFieldELBO().terms(model, bp.guides.WeibullGuide(model), batch)
        >>> bool(torch.isclose(terms.loss, terms.nll + terms.kl["phi"]))  # the negative ELBO, KL weight 1
        True
    """

    def __init__(self, *, sampled_kl: bool = False, num_particles: int = 1, **kwargs: int | bool) -> None:
        if num_particles < 1:
            raise ConfigError(f"num_particles={num_particles} must be at least 1.")
        super().__init__(num_particles=num_particles, **kwargs)
        self.sampled_kl = sampled_kl

    def terms(self, model: AdaptedLM, guide: SiteGuide, batch: Batch) -> ElboTerms:
        """Evaluate the bound and return its parts, with one forward of the language model per particle.

        Args:
            model: the program.
            guide: its guide.
            batch: rows with labels; sums over them are scaled to all `model.num_data` rows.

        Returns:
            The negative ELBO of the whole data set and its parts, in nats, with gradients.

        Raises:
            MissingKLError: posterior and prior of a latent have no analytic KL.
            ConfigError: the guide belongs to another model, a posterior has no `rsample`, or a parameter lies
                in Pyro's store.
            DataError: the batch has no labels.
        """
        guide.check(model)
        particles = [self._particle(guide, batch) for _ in range(self.num_particles)]
        return particles[0] if len(particles) == 1 else mean_terms(particles)

    def _particle(self, guide: SiteGuide, batch: Batch) -> ElboTerms:
        model_trace, guide_trace = guide.run(batch)
        check_stored(model_trace, guide)
        return self._terms(model_trace, guide_trace)

    def _get_trace(self, model: Callable, guide: Callable, args: tuple, kwargs: dict) -> tuple[Trace, Trace]:
        site_guide = unwrap(guide)
        if isinstance(site_guide, SiteGuide):
            return site_guide.beside(model, guide, args, kwargs)
        return super()._get_trace(model, guide, args, kwargs)

    def _differentiable_loss_particle(self, model_trace: Trace, guide_trace: Trace) -> tuple[float, Tensor]:
        loss = self._terms(model_trace, guide_trace).loss
        return loss.item(), loss

    def _terms(self, model_trace: Trace, guide_trace: Trace) -> ElboTerms:
        answer = guide_trace.nodes.get(LIKELIHOOD)
        if answer is not None and not answer["is_observed"]:
            raise DataError(
                "The batch has no labels, and the bound needs the answer of every row: give labels for all "
                "rows (one missing label removes those of the whole batch)."
            )
        losses: list[Tensor] = []
        nlls: list[Tensor] = []
        kl: dict[str, Tensor] = {}
        extra: dict[str, Tensor] = {}
        for name, site in model_trace.nodes.items():
            if site["type"] != "sample":
                continue
            if name == LIKELIHOOD:
                nlls.append(-_log_prob(site, site["scale"]).sum())
                continue
            if name not in guide_trace.nodes:
                other = -_log_prob(site, 1.0)
                losses.append(total(other, site["scale"]))
                extra[name] = other.sum()
                continue
            posterior = guide_trace.nodes[name]
            if posterior["fn"] is site["fn"]:
                continue
            _check_gradient(name, posterior)
            if (site.get("infer") or {}).get(UNWEIGHTED):
                kl[name] = torch.zeros((), device=value_of(site).device)
                continue
            divergence = self.divergence(name, posterior, site)
            if (draw := guide_trace.nodes.get(name + AUXILIARY)) is not None:
                divergence = divergence + _log_prob({**draw, "mask": site["mask"]}, 1.0)
            losses.append(total(divergence, site["scale"]))
            kl[name] = divergence.sum()
        for name, site in guide_trace.nodes.items():
            # A joint distribution; the latents are functions of it.
            if _stands_alone(name, site, model_trace):
                _check_gradient(name, site)
                density = _log_prob(site, 1.0)
                losses.append(total(density, site["scale"]))
                kl[name] = density.sum()
        return ElboTerms(loss=_sum([*losses, *nlls]), nll=_sum(nlls), kl=kl, extra=extra)

    def divergence(self, name: str, posterior: Message, prior: Message) -> Tensor:
        """Return the masked KL of a site in nats, of the site's batch shape.

        Args:
            name: name of the site.
            posterior: the site's node in the guide's trace.
            prior: the site's node in the model's trace.

        Raises:
            MissingKLError: no analytic KL is registered, and `sampled_kl` is False.
        """
        q, p = distribution_of(posterior), distribution_of(prior)
        if has_analytic_kl(q, p):
            kl = kl_divergence(q, p)
        elif self.sampled_kl:
            kl = q.log_prob(value_of(posterior)) - p.log_prob(value_of(posterior))
        else:
            raise MissingKLError(
                f"Site {name!r}: no analytic KL({family_name(q)} || {family_name(p)}) is registered; choose "
                "another prior or guide, or allow a one-draw estimate with sampled_kl=True (--sampled-kl)."
            )
        return torch.as_tensor(scale_and_mask(kl, mask=prior["mask"]))


def _check_gradient(name: str, posterior: Message) -> None:
    """Refuse a distribution without `rsample`, which would block the likelihood's gradient."""
    fn = distribution_of(posterior)
    if not fn.has_rsample:
        raise ConfigError(
            f"The guide draws {name!r} from a {family_name(fn)}, which has no rsample, so the answers could "
            "not train the guide: use a distribution with rsample."
        )


def _stands_alone(name: str, site: Message, model_trace: Trace) -> bool:
    """Return whether a site exists in the guide only and belongs to no latent of the program."""
    if (
        site["type"] != "sample"
        or name in model_trace.nodes
        or name.removesuffix(AUXILIARY) in model_trace.nodes
    ):
        return False
    return not site["is_observed"] and bool((site["infer"] or {}).get("is_auxiliary"))


def _sum(values: Sequence[Tensor]) -> Tensor:
    return reduce(add, values) if values else torch.zeros(())


def _log_prob(site: Message, scale: Tensor | float) -> Tensor:
    """Return the scaled and masked log-density of a site's value, in the site's batch shape."""
    return scale_and_mask(distribution_of(site).log_prob(value_of(site)), scale=scale, mask=site["mask"])
