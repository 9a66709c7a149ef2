"""With B = 0 the bound on replies has a closed form: cross-entropy of tokens and divergences, row by row."""

import pytest
import torch
from core_cases import backbone, bara_pair, gamma_priors, noise_level, quadrature_kl, seen
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.distributions import KAPPA_MAX
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.likelihood import CompletionLikelihood
from bara_pyro.core.terms import ElboTerms
from bara_pyro.data.replies import EncodedReply, reply_batch
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA

N, R = 12, 3
PHI, THETA = (0.7, 1.3), (2.0, 0.5)  # Gamma (concentration, rate): unlike, so that a swap shows
TARGETS = ["q_proj", "down_proj", "lm_head"]
# Prompts of 1 to 6 tokens, replies of 1 to 4: no two replies begin at one place of a padded row.
ROWS = (
    ((3, 4, 5), (6, 7)),
    ((8,), (9, 10, 11, 12)),
    ((13, 14, 15, 16, 17, 18), (19,)),
    ((20, 21), (22, 23, 24)),
)
EACH = [[EncodedReply(prompt, reply, str(i))] for i, (prompt, reply) in enumerate(ROWS)]


def toy(**options: object) -> tuple[BaRA, WeibullGuide]:
    """B = 0, and a guide that is not at its start; kappa stays inside its bounds."""
    settings = {"num_data": N, "r": R, "target_modules": TARGETS, **gamma_priors(phi=PHI, theta=THETA)}
    return bara_pair(
        seed=7,
        move=0.1,
        fit={"random_kappa": True, "max_kappa": KAPPA_MAX},
        likelihood=CompletionLikelihood(),
        **settings,
        **options,
    )


def terms_of(pair: tuple[BaRA, WeibullGuide], rows: list[list[EncodedReply]], pad_id: int = 0) -> ElboTerms:
    return MeanFieldELBO().terms(*pair, reply_batch(rows, pad_id))


def closed_form(model: BaRA, guide: WeibullGuide) -> dict[str, float]:
    """Sums over the rows, each read alone and unpadded by transformers; divergences by quadrature."""
    lm, inputs = model.backbone.lm, {}
    paths = [target.path for target in model.targets]

    def watch(path: str) -> torch.utils.hooks.RemovableHandle:
        def hook(_: object, args: tuple[Tensor, ...]) -> None:
            inputs[path] = args[0][0]

        return lm.get_submodule(path).register_forward_pre_hook(hook)

    def kl(weight: Tensor, x: Tensor, prior: tuple[float, float]) -> float:
        raw = weight @ x
        return float(quadrature_kl(F.softplus(raw[:R]), noise_level(raw[R:]), *prior).sum())

    handles = [watch(path) for path in paths]
    nll = theta = head = 0.0
    try:
        for prompt, reply in ROWS:
            with torch.no_grad():
                logits = lm(input_ids=torch.tensor([[*prompt, *reply]])).logits[0]
            first, last = (
                len(prompt) - 1,
                len(prompt) + len(reply) - 1,
            )  # what comes before each of its tokens
            nll += float(F.cross_entropy(logits[first:last].double(), torch.tensor(reply), reduction="sum"))
            for path in paths:
                weight = guide.sites[f"theta/{path}".replace(".", "/")].weight.detach()
                # The last token of a reply is nobody's input; of the head only what is asked is a gate.
                for x in inputs[path][first if path == "lm_head" else 0 : last]:
                    own = kl(weight, seen(model, x), THETA)
                    theta += own
                    head += own if path == "lm_head" else 0.0
    finally:
        for handle in handles:
            handle.remove()
    raw = guide.sites["phi"].weight.detach()
    phi = float(quadrature_kl(F.softplus(raw[:, :R]), noise_level(raw[:, R:]), *PHI).sum())
    return {"nll": nll, "phi": phi, "theta": theta, "head": head}


@pytest.mark.parametrize("form", ["additive", "gate"])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 0.7), (1.0, 1e-5), (2.0, 0.1)])
def test_the_loss_is_the_closed_form(form: str, weights: tuple[float, float]) -> None:
    model, guide = toy(form=form, beta_phi=weights[0], beta_theta=weights[1])
    truth = closed_form(model, guide)
    terms = terms_of((model, guide), EACH)
    scale = N / len(ROWS)
    expected = scale * truth["nll"] + weights[0] * truth["phi"] + weights[1] * scale * truth["theta"]
    assert terms.loss.item() == pytest.approx(expected, rel=3e-6)
    assert terms.nll.item() == pytest.approx(scale * truth["nll"], rel=3e-6)
    assert terms.kl["phi"].item() == pytest.approx(truth["phi"], rel=5e-6)
    assert terms.kl["theta/lm_head"].item() == pytest.approx(truth["head"], rel=5e-6)
    local = sum(value.item() for site, value in terms.kl.items() if site != "phi")
    assert local == pytest.approx(truth["theta"], rel=5e-6)
    # Every part, and what a single token adds to it, is large enough to be missed.
    assert min(truth.values()) > 1e-2 * (truth["nll"] + truth["phi"] + truth["theta"])


@pytest.mark.parametrize("form", ["additive", "gate"])
def test_padding_costs_nothing(form: str) -> None:
    """Rows one by one, which need none; what stands in it is of no matter."""
    pair = toy(form=form, beta_phi=0.0, beta_theta=1.0)
    together = terms_of(pair, EACH)
    other = terms_of(pair, EACH, pad_id=33)
    alone = [terms_of(pair, [row]) for row in EACH]
    mean = sum(terms.loss.item() for terms in alone) / len(alone)
    assert together.loss.item() == pytest.approx(mean, rel=3e-6)
    assert other.loss.item() == pytest.approx(together.loss.item(), rel=3e-6)
    for site, kl in together.kl.items():
        assert other.kl[site].item() == pytest.approx(kl.item(), rel=1e-5)
        if site != "phi":
            assert sum(terms.kl[site].item() for terms in alone) == pytest.approx(kl.item(), rel=1e-5)


def test_without_latents_it_is_the_loss_of_transformers() -> None:
    """Labels are -100 on the prompt; the mean over tokens times their number."""
    pair = toy(beta_phi=0.0, beta_theta=0.0)
    total = 0.0
    for prompt, reply in ROWS:
        ids, labels = torch.tensor([[*prompt, *reply]]), torch.tensor([[*[-100] * len(prompt), *reply]])
        with torch.no_grad():
            total += float(backbone().lm(input_ids=ids, labels=labels).loss) * len(reply)
    assert terms_of(pair, EACH).loss.item() == pytest.approx(N / len(ROWS) * total, rel=3e-6)
