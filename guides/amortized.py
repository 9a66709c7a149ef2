"""Base of the guides for gates: map raw parameters to a mean and a noise level.

    q(Phi)        mean = softplus(e_m),            kappa = softplus(e_kappa + c)
    q(theta | x)  mean = activation(A_m z),        kappa = softplus(A_kappa z + c), at most max_kappa

These are Eq. 16 and 17 of the paper, parameterised by the mean; `kappa` is 1/k of the Weibull distribution.
`z` is the layer's input x, or x divided by its root mean square. A family is a subclass that turns mean and
noise level into a distribution.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.distributions import (
    KAPPA_MAX,
    KAPPA_MIN,
    MEAN_MIN,
    bound_mean,
    bounded_softplus,
    softplus_inverse,
)
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.modules import Module, by_name
from bara_pyro.core.posterior import PosteriorMedian, quantile
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, check_choice

NORM_MIN = 1e-6  # smallest norm that an input is divided by, so that an input of zeros stays 0
# Initial noise level: the largest value, the number of rows up to which it is used, and the smallest value.
MOST_START, MOST_START_ROWS, LEAST_START = 0.5, 2560, 0.1
# Any row will do for the global latents, which do not depend on it.
ANY_ROW = Batch(torch.zeros(1, 1).long(), torch.ones(1, 1).bool(), torch.empty(0).long())

Shape = Literal["kappa", "k"]
Width = Literal["vector", "scalar"]
Activation = Literal["softplus", "relu", "topk"]


class _Raw(Module):
    """The unconstrained parameters of one site."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


class _OfNormalised(torch.autograd.Function):
    """`F.linear(x / rms(x), weight, start)`, of which autograd keeps only the inputs.

    It divides the few outputs, not the wide input. Written as a product, it would keep the outputs as well.
    """

    # With a separate setup_context torch would inspect this signature at every call, which takes 0.3 ms.
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, start: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight).mul_(x.shape[-1] ** 0.5 / _norm(x)).add_(start)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        norm = _norm(x)
        grad = grad * (x.shape[-1] ** 0.5 / norm)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = grad @ weight
            # A longer x gives the same outputs: the part of the gradient along x is removed.
            along = (of_x * x).sum(-1, keepdim=True) / norm.square()
            of_x = torch.addcmul(of_x, x, along.masked_fill(norm == NORM_MIN, 0), value=-1)
        if ctx.needs_input_grad[1]:
            of_weight = grad.reshape(-1, len(weight)).T @ x.reshape(-1, x.shape[-1])
        return of_x, of_weight, None


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(NORM_MIN)


class AmortizedGuide(SiteGuide):
    """Mean-field posterior: free parameters for global sites, linear in the layer's input for local sites.

    Subclasses define `family`.

    Args:
        model: the program; its latents must be gates, r per module.
        shape: "kappa": `kappa = softplus(raw)`; "k", as in the paper's text: `kappa = 1 / softplus(raw)`.
        shape_width: for theta, "vector": one noise level per entry; "scalar": one for all r entries of a
            gate.
        init_kappa: initial noise level. The default depends on the number of training rows, see
            `start_kappa`; the paper's Algorithm 1 uses ln 2 = softplus(0).
        max_kappa: largest noise level. The default 1 is the noise level of the prior Gamma(1, b). Under that
            prior it costs nothing in the bound, and it excludes the heavy tails that make training at high
            learning rates collapse (docs/decisions.md, record 5). Use `KAPPA_MAX` for sparser priors and to
            follow the text of the paper.
        random_kappa: initialise A_kappa orthogonally together with A_m, as Algorithm 1 does; the initial
            noise level of a token is then random. Otherwise A_kappa starts at 0 and every token at
            `init_kappa`.
        normalize_input: divide x by its root mean square. The rows of A_m are orthonormal, so the initial
            distribution of the gates then does not depend on the size of the activations. Default: True in
            the gate form, where the gates multiply `A x`, which keeps the size; else False, as Algorithm 1.
        activation: activation of theta's mean: "softplus", "relu", or "topk" (softplus, with all entries
            except the `top_k` largest set to the smallest mean).
        top_k: number of gates that "topk" leaves open.

    Raises:
        ConfigError: an unknown name, a number out of range, or latents that are not gates.
    """

    noisy = True  # False for a family without a noise level, which then has no parameters for it

    def __init__(
        self,
        model: AdaptedLM,
        *,
        shape: Shape = "kappa",
        shape_width: Width = "vector",
        init_kappa: float | None = None,
        max_kappa: float = 1.0,
        random_kappa: bool = False,
        normalize_input: bool | None = None,
        activation: Activation = "softplus",
        top_k: int = 4,
    ) -> None:
        super().__init__(model)
        latents = model.latents
        if other_shapes := [
            name for name, site in latents.global_sites.items() if site.shape[-1:] != (latents.r,)
        ]:
            raise ConfigError(
                f"A {type(self).__name__} is for gates, r per module, and {other_shapes[0]!r} of this "
                f"{type(model).__name__} is not a gate: choose a guide for its latents."
            )
        check_choice("shape", shape, Shape)
        check_choice("shape_width", shape_width, Width)
        check_choice("activation", activation, Activation)
        if init_kappa is None:
            init_kappa = min(start_kappa(model.num_data), max_kappa)
        if not KAPPA_MIN <= init_kappa <= max_kappa <= KAPPA_MAX:
            raise ConfigError(
                f"init_kappa={init_kappa} and max_kappa={max_kappa} must lie in [{KAPPA_MIN}, {KAPPA_MAX}], "
                "and init_kappa must not exceed max_kappa."
            )
        if activation == "topk" and not 1 <= top_k <= latents.r:
            raise ConfigError(f"top_k={top_k} must lie between 1 and the rank {latents.r}.")
        self.shape = shape
        self.activation = activation
        self.top_k = top_k
        self.normalize_input = latents.modulating if normalize_input is None else normalize_input
        self.max_kappa = max_kappa
        self.r = latents.r
        offset = softplus_inverse(init_kappa if shape == "kappa" else 1 / init_kappa)
        start = torch.cat([torch.zeros(latents.r), torch.full((latents.r,), offset)])
        self.register_buffer(
            "start", start, persistent=False
        )  # added to the raw values; c in the equations above
        self.sizes: dict[str, tuple[int, int]] = {}  # site -> number of means, number of noise levels
        sites: dict[str, _Raw] = {}
        for name, site in latents.global_sites.items():
            # One noise level per entry even with "scalar", which is there to save weights of A_kappa only.
            self.sizes[name] = (latents.r, latents.r if self.noisy else 0)
            sites[name] = _Raw(torch.zeros(*site.shape[:-1], sum(self.sizes[name])))
        for name, site in latents.local_sites.items():
            rank = site.shape[-1]
            self.sizes[name] = (rank, (rank if shape_width == "vector" else 1) if self.noisy else 0)
            raw = nn.init.orthogonal_(torch.empty(sum(self.sizes[name]), site.width))
            if not random_kappa:
                raw[rank:] = 0
            sites[name] = _Raw(raw)
        self.sites = by_name(sites)
        self._raw = sites  # read at every site: a plain dict
        self._local = frozenset(latents.local_sites)
        self.to(model.backbone.device)

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        """Return the site's posterior; the plate of a global site expands it."""
        weight = self._raw[name].weight
        if name not in self._local:
            return self.posterior(weight, self.r)
        rank = self.sizes[name][0]
        raw = self.shifted(self._amortised(weight, rank, self.input), name)
        return self._of_raw(raw, rank, local=True).to_event(1)

    def posterior(self, weight: Tensor, rank: int, x: Tensor | None = None) -> TorchDistribution:
        """Return the posterior for given unconstrained parameters: means first, then noise levels.

        Args:
            weight: `... x (rank + levels)` for a global site, `(rank + levels) x in_features` for a local
                one.
            rank: rank of the module.
            x: the layer's input, float32, `... x in_features`, for a local site; None for a global one.
        """
        local = x is not None
        raw = weight + self._start(rank, weight.shape[-1]) if x is None else self._amortised(weight, rank, x)
        return self._of_raw(raw, rank, local).to_event(1)

    def shifted(self, raw: Tensor, name: str) -> Tensor:
        """Return the raw parameters of a local site, `... x (rank + levels)`; subclasses may shift them."""
        return raw

    def _start(self, rank: int, size: int) -> Tensor:
        return self.start[self.r - rank : self.r - rank + size]

    def _amortised(self, weight: Tensor, rank: int, x: Tensor) -> Tensor:
        """Return the raw parameters for an input, `... x (rank + levels)`."""
        start = self._start(rank, len(weight))
        if not self.normalize_input:
            return F.linear(x, weight, start)
        return cast(Tensor, _OfNormalised.apply(x, weight, start))

    def _of_raw(self, raw: Tensor, rank: int, local: bool) -> TorchDistribution:
        # Both parts at once: on small models the number of operations matters.
        if self.shape == "kappa":
            mean, kappa = bounded_softplus(raw, rank, KAPPA_MIN, self.max_kappa)
        else:  # bounded before the division: near 0 the gradient of 1 / k would overflow
            mean, level = bounded_softplus(raw, rank, 1 / self.max_kappa, 1 / KAPPA_MIN)
            kappa = level.reciprocal()
        if local and self.activation == "relu":
            mean = bound_mean(raw[..., :rank])
        elif local and self.activation == "topk":
            mean = self._opened(mean)
        if not self.noisy:
            return self.family(mean, mean)
        return self.family(mean, kappa if kappa.shape == mean.shape else kappa.expand(mean.shape))

    @torch.no_grad()
    def centre(self, mean: float) -> None:
        """Give every global gate this posterior mean; noise levels stay as they are."""
        for name in self.sizes.keys() - self._local:
            self._raw[name].weight[..., : self.r] = softplus_inverse(mean)

    def local_parameters(self) -> list[nn.Parameter]:
        """Return the amortiser's weights; `bara_pyro.core.optimizers.adamw` may lower their learning rate."""
        return [self._raw[name].weight for name in self._raw if name in self._local]

    def median(self, batch: Batch | None = None) -> dict[str, Tensor]:
        """Return the posterior median of every latent by site, as Pyro's automatic guides do.

        Arguments and errors are those of `quantiles`.
        """
        return {name: values[0] for name, values in self.quantiles([0.5], batch).items()}

    def quantiles(self, quantiles: Sequence[float], batch: Batch | None = None) -> dict[str, Tensor]:
        """Return posterior quantiles of every latent by site, as Pyro's automatic guides do.

        q(theta | x) depends on the input of its layer: it is taken with the latents of the layers below at
        their medians.

        Args:
            quantiles: Q levels between 0 and 1.
            batch: B rows of T tokens; not needed if the program has global latents only (`latent="phi"`).

        Returns:
            Site -> `Q x modules x r` for Phi; `Q x B x T x r` for theta of a layer, T = 1 at the output
            embedding.

        Raises:
            ConfigError: a level is out of range, the family has no quantile function, or theta has no rows.

        Examples:
            >>> import bara_pyro as bp
            >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
            >>> batch = run.split("test").batch(range(3), run.answer_ids)
            >>> found = run.guide.quantiles([0.05, 0.5, 0.95], batch)["phi"]
            >>> found.shape, bool((found[0] < found[2]).all())
            (torch.Size([3, 9, 8]), True)
        """
        if batch is None and self.model.latents.local_sites:
            raise ConfigError(
                "The posterior of theta depends on the rows: give a batch, such as "
                "guide.median(rows.batch(range(8), answers))."
            )
        medians = PosteriorMedian(self)
        with torch.no_grad(), medians:
            if batch is None:
                self.model.global_latents(ANY_ROW)
            else:
                self.model.forward(batch.unlabelled())
            posteriors = medians.found.items()
            return {
                name: torch.stack([quantile(fn, level) for level in quantiles]) for name, fn in posteriors
            }

    def family(self, mean: Tensor, kappa: Tensor) -> TorchDistribution:
        """Return the distribution with the given mean and noise level, both `... x rank`."""
        raise NotImplementedError

    def _opened(self, mean: Tensor) -> Tensor:
        """Return means of which the `top_k` largest are left and the others set to the smallest."""
        largest = mean.topk(min(self.top_k, mean.shape[-1])).indices
        mask = torch.zeros_like(mean).scatter(-1, largest, 1.0)
        return (mean * mask).clamp_min(MEAN_MIN)


def start_kappa(rows: int) -> float:
    """Return the default initial noise level for a number of training rows.

    It is 0.5 up to 2,560 rows. Beyond, it falls with the square root of the number of rows, as the width of a
    posterior does, down to 0.1 (docs/decisions.md, record 6).

    >>> start_kappa(80), start_kappa(2560), start_kappa(10240), start_kappa(10**6)
    (0.5, 0.5, 0.25, 0.1)
    """
    return max(LEAST_START, MOST_START * math.sqrt(min(1.0, MOST_START_ROWS / rows)))
