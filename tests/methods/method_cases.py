"""What the tests of methods share: pairs by their settings, LoRA in plain torch, comparisons."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pyro
import torch
from core_cases import backbone, hooked_forward, make_batch
from pyro.infer import SVI as STOCK
from pyro.infer import Predictive, TraceMeanField_ELBO
from torch import Tensor, nn
from torch.testing import assert_close

from bara_pyro.core.adapter import Adapter
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.optimizers import parameters
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods import METHODS, build, method_config
from bara_pyro.models.gaussian_lora import GaussianLoRA
from bara_pyro.runs.config import load_config

R, ALPHA, N = 3, 16.0, 12
Pair = tuple[AdaptedLM, SiteGuide]
UNLABELLED = replace(make_batch(), labels=None)


def made(
    method: str, *, r: int = R, num_data: int = N, frozen: Backbone | None = None, **settings: object
) -> Pair:
    """The pair that `--method` and these settings build."""
    adapter = {"r": r, "lora_alpha": ALPHA, "target_modules": None}
    config = method_config({"name": method, **settings})
    return build(config, frozen or backbone(), num_data, adapter)


def unflip(model: AdaptedLM) -> None:
    """Have one draw for all tokens, without random signs, from now on."""
    if isinstance(model, GaussianLoRA) and model.flipout:
        for part in (model, *model.adapters.values()):
            part.flipout = False
        model.__dict__.pop("latents", None)


def svi_of(method: str, pair: Pair, settings: dict[str, object] | None = None, **train: object) -> SVI:
    """The method's own inference; `train` are settings of that section."""
    sections = {f"train.{key}": value for key, value in train.items()}
    given = {"method": {"name": method, **(settings or {})}, "train.steps": 1000}
    config = load_config(overrides=given | sections)
    return METHODS[method].svi(*pair, config.train, config.method)


def twin_of(pair: Pair) -> Pair:
    """The same again, on the same backbone."""
    frozen = pair[0].backbone
    # Its layers, too, which the program points to: copies of them would never run.
    memo = {id(part): part for part in (frozen, *frozen.lm.modules())}
    return copy.deepcopy(pair, memo)


def plain_log_probs(
    model: AdaptedLM,
    batch: Batch,
    change: Callable[[Adapter, Tensor], Tensor],
    lm: nn.Module | None = None,
) -> Tensor:
    """The answers' log-probabilities with `change(adapter, input)` added to every layer, in plain torch.

    `lm`: the language model, where another copy of it is to be run than the model's.
    """

    def by_path(path: str, x: Tensor) -> Tensor:
        return change(model.adapters[path.replace(".", "/")], x)

    lm = model.backbone.lm if lm is None else lm
    return hooked_forward(batch, lm, [t.path for t in model.targets], "lm_head", by_path)


def cross_entropy(log_probs: Tensor, batch: Batch) -> Tensor:
    return -log_probs[torch.arange(len(batch)), batch.labels].mean()


def assert_same_gradients(
    pair: Pair, ours: Tensor, truth: Tensor, *, rtol: float = 0.0, atol: float = 0.0, share: float = 0.0
) -> None:
    """In every parameter, within `atol` and a `share` of its largest entry."""
    own = parameters(*pair)
    a, b = (torch.autograd.grad(loss, own, allow_unused=True) for loss in (ours, truth))
    for first, second in zip(a, b, strict=True):
        true = torch.zeros_like(first) if second is None else second
        assert_close(first, true, rtol=rtol, atol=atol + share * float(true.abs().max()))


def assert_same_mean(ours: Tensor, theirs: Tensor, least: float = 5e-3) -> None:
    """Mean probabilities of two sets of draws, `S x B x C` logarithms, within 4.5 standard errors."""
    a, b = ours.double().exp(), theirs.double().exp()
    assert a.std(0).min() > least  # there is something to agree on
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    assert ((a.mean(0) - b.mean(0)).abs() < 4.5 * error).all()


def stock_draws(pair: Pair, draws: int, *, parallel: bool) -> Tensor:
    """Log-probabilities from Pyro's own `Predictive`, `draws x B x C`."""
    model, guide = pair
    pyro.set_rng_seed(5)
    stock = Predictive(model, guide=guide, num_samples=draws, parallel=parallel, return_sites=("_RETURN",))
    return stock(UNLABELLED)["_RETURN"].reshape(draws, 4, -1)


def assert_stock_draws_agree(pair: Pair, *, parallel: bool) -> None:
    count = 600 if parallel else 60  # one forward for all, or one a draw
    assert_same_mean(predict(*pair, make_batch(), samples=600), stock_draws(pair, count, parallel=parallel))


def losses_of_both(make: Callable[[], Pair], steps: int = 8) -> list[list[float]]:
    """The losses of our inference and of Pyro's own from the same start with the same noise."""
    out = []
    for stock in (False, True):
        pyro.clear_param_store()
        torch.manual_seed(3)
        pair = make()
        if stock:
            svi = STOCK(*pair, pyro.optim.Adam({"lr": 0.01, "eps": 1e-4 * N}), TraceMeanField_ELBO())
        else:
            svi = SVI(*pair, torch.optim.Adam(parameters(*pair), lr=0.01, eps=1e-4))
        pyro.set_rng_seed(1)
        out.append([svi.step(make_batch()) for _ in range(steps)])
    return out


def factor_of(step: int, steps: int = 5) -> float:
    """The share of its peak that a rate has: warm-up of one step, then down to 0 at the last."""
    return 1.0 if step == 0 else (steps - step) / (steps - 1)


def trained(pair: Pair, steps: int = 3) -> list[Tensor]:
    """The parameters after some steps of AdamW."""
    svi = svi_of("lora", pair, lr=0.01)
    for _ in range(steps):
        svi.step(make_batch())
    return svi.parameters
