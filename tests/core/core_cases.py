"""Tiny random language models, batches and a plain-torch BaRA that shares no code with the library."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import torch
from scipy import special
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, Qwen2Config

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.optimizers import adamw
from bara_pyro.core.posterior import PosteriorMean
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.data.split import collate_ids
from bara_pyro.data.types import Batch
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA

VOCAB = 61
ANSWERS = torch.tensor([7, 3, 50])
ROWS = ((5, 7, 9), (3, 4, 5, 6, 7, 8, 2), (11, 12), (40, 41, 42, 43))
LABELS = (0, 2, 1, 2)
IDS = ("a", "b", "c", "d")

_COMMON = {
    "vocab_size": VOCAB,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,  # far from linear, so that a wrong input or position shows
}
_LLAMA = {**_COMMON, "intermediate_size": 24, "num_key_value_heads": 1}
CONFIGS = {
    "qwen2": Qwen2Config(**_LLAMA, tie_word_embeddings=False),
    "qwen2-tied": Qwen2Config(**_LLAMA, tie_word_embeddings=True),
    "llama": LlamaConfig(**_LLAMA, tie_word_embeddings=False),
    "llama-tied": LlamaConfig(**_LLAMA, tie_word_embeddings=True),
    "gpt_neox": GPTNeoXConfig(**_COMMON, intermediate_size=24, rotary_pct=0.5, tie_word_embeddings=False),
    "gpt2": GPT2Config(
        vocab_size=VOCAB,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=32,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    ),
}


def pairwise(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return cases in which every two values of two axes meet: far fewer than the full product."""
    lists = [list(axis) for axis in axes]

    def meetings(case: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(combinations(enumerate(case), 2))

    every = list(product(*(range(len(axis)) for axis in lists)))
    left = set().union(*map(meetings, every))
    found = []
    while left:
        best = max(every, key=lambda case: len(left & meetings(case)))
        left -= meetings(best)
        found.append(tuple(axis[i] for axis, i in zip(lists, best, strict=True)))
    return found


def make_lm(arch: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A new language model, the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        return AutoModelForCausalLM.from_config(CONFIGS[arch], dtype=dtype)


SHARED: dict[str, Backbone] = {}


def backbone(arch: str = "qwen2") -> Backbone:
    """One a process: no test may change it, and after each it is seen that none did."""
    if arch not in SHARED:
        SHARED[arch] = Backbone(make_lm(arch))
    return SHARED[arch]


def shared_states() -> dict[str, list[object]]:
    """What a test must leave as it was: weights, hooks, training mode."""
    return {
        arch: [
            *(float(value.detach().double().sum()) for value in shared.lm.state_dict().values()),
            *((len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in shared.lm.modules()),
            shared.checkpointing,
            shared.shortcuts,
        ]
        for arch, shared in SHARED.items()
    }


def make_batch(
    rows: tuple = ROWS, *, pad: int = 0, pad_id: int = 0, choose: list[int] | None = None
) -> Batch:
    """The rows (or those chosen), left-padded; `pad` further columns of padding."""
    chosen = list(range(len(rows))) if choose is None else choose
    batch = collate_ids(
        [rows[i] for i in chosen], [LABELS[i] for i in chosen], [IDS[i] for i in chosen], ANSWERS, pad_id
    )
    wide = {"input_ids": F.pad(batch.input_ids, (pad, 0), value=pad_id)}
    return replace(batch, **wide, attention_mask=F.pad(batch.attention_mask, (pad, 0)))


def randomise(model: AdaptedLM, scale: float = 0.3, seed: int = 0) -> AdaptedLM:
    """Give the adapters a B that is not 0, as after training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("lora_B"):
                value.copy_(scale * torch.randn(value.shape, generator=generator))
    return model


def bara_pair(
    arch: str = "qwen2",
    guide: type = WeibullGuide,
    *,
    num_data: int = 4,
    r: int = 3,
    seed: int | None = None,
    scale: float = 0.0,
    move: float = 0.0,
    fit: dict | None = None,
    **options: Any,
) -> tuple[BaRA, Any]:
    """BaRA and a guide for it; B random of that scale, the guide moved away from its start.

    `seed` is set before both are made; `fit` are the guide's options, `options` those of the program.
    """
    if seed is not None:
        torch.manual_seed(seed)
    model = BaRA(backbone(arch), num_data, r=r, **options)
    if scale:
        randomise(model, scale)
    fitted = guide(model, **(fit or {}))
    with torch.no_grad():
        for weight in fitted.parameters() if move else ():
            weight.add_(move * torch.randn_like(weight))
    return model, fitted


def lora_pair(
    arch: str = "qwen2", *, num_data: int = 4, scale: float = 0.3, **options: Any
) -> tuple[LoRA, DeltaGuide]:
    """LoRA with a random B, and the guide of what has no latents."""
    model = randomise(LoRA(backbone(arch), num_data, **{"r": 3, **options}), scale)
    return model, DeltaGuide(model)


def trainer(pair: tuple[AdaptedLM, SiteGuide], lr: float = 1e-2, **options: Any) -> SVI:
    """Our SVI with AdamW."""
    return SVI(*pair, adamw(*pair, lr), **options)


def gamma_priors(**priors: tuple[float, float]) -> dict[str, dict]:
    """Settings of Gamma priors from (concentration, rate), by the kind of latent."""
    return {
        f"{kind}_prior": {"name": "gamma", "concentration": a, "rate": b} for kind, (a, b) in priors.items()
    }


def unlabelled(**options: Any) -> Batch:
    """`make_batch` without its labels."""
    return replace(make_batch(**options), labels=None)


def mean_forward(model: AdaptedLM, guide: SiteGuide, batch: Batch) -> Tensor:
    with torch.no_grad(), PosteriorMean(guide):
        return model.forward(batch)


def plain_forward(batch: Batch, lm: nn.Module) -> Tensor:
    """The language model's own log-probabilities of the answers, `B x C`."""
    mask = batch.attention_mask.long()
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    out = lm(input_ids=batch.input_ids, attention_mask=mask, position_ids=positions, use_cache=False)
    return out.logits[:, -1, batch.answer_ids].float().log_softmax(-1)


Change = Callable[[str, Tensor], Tensor]


def hooked_forward(batch: Batch, lm: nn.Module, paths: list[str], head: str, change: Change) -> Tensor:
    """`plain_forward` with `change(path, input)` added to the output of each named layer.

    The answer head's change is that of the last position only, as the program defines it.
    """

    def hook_of(path: str) -> Callable:
        def hook(layer: nn.Module, args: tuple, output: Tensor) -> Tensor:
            if path != head:
                return output + change(path, args[0])
            last = output[:, -1:] + change(path, args[0][:, -1:])
            return torch.cat([output[:, :-1], last], dim=1)

        return hook

    handles = [lm.get_submodule(path).register_forward_hook(hook_of(path)) for path in paths]
    try:
        return plain_forward(batch, lm)
    finally:
        for handle in handles:
            handle.remove()


def parts_of(model: BaRA, path: str) -> tuple[Tensor, Tensor | None]:
    """B and A (None in the additive form) of one layer."""
    adapter = model.adapters[path.replace(".", "/")]
    return adapter.lora_B, getattr(adapter, "lora_A", None)


def seen(model: BaRA, x: Tensor) -> Tensor:
    """What the amortiser sees by default: in the gate form the direction of x, without its size."""
    return x / x.square().mean(-1, keepdim=True).sqrt() if model.form == "gate" else x


def noise_level(raw: Tensor) -> Tensor:
    """kappa of raw parameters, which is the default `init_kappa`, 0.5, where they are 0."""
    return F.softplus(raw + math.log(math.expm1(0.5)))


class PlainBaRA:
    """BaRA with a Weibull posterior, written out: the objective that the Pyro program must equal.

    Shares the parameters of model and guide, draws its noise in the order in which the layers run, and
    writes every distribution in the usual (scale, shape) form of the Weibull distribution.
    """

    def __init__(self, model: BaRA, guide: SiteGuide) -> None:
        self.model = model
        self.lm = model.backbone.lm
        self.paths = [target.path for target in model.targets]
        self.head = next((t.path for t in model.targets if t.is_head), "")
        self.raw = {name: guide.sites[name.replace(".", "/")].weight for name in ("phi", *self._thetas())}

    def _thetas(self) -> list[str]:
        return [f"theta/{path}" for path in self.paths]

    def posterior(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shape from raw parameters."""
        r = self.model.r
        mean, kappa = F.softplus(raw[..., :r]), noise_level(raw[..., r:])
        return mean / torch.exp(torch.lgamma(1 + kappa)), 1 / kappa

    @staticmethod
    def draw(scale: Tensor, shape: Tensor) -> Tensor:
        noise = torch.empty(scale.shape).exponential_()
        return scale * noise ** (1 / shape)

    @staticmethod
    def kl(scale: Tensor, shape: Tensor, a: float, b: float) -> Tensor:
        """KL(Weibull || Gamma(a, b)), entry by entry."""
        g = 0.5772156649015329
        mean = scale * torch.exp(torch.lgamma(1 + 1 / shape))
        out = g * a / shape - a * scale.log() + shape.log() + b * mean
        return out - g - 1 - a * math.log(b) + math.lgamma(a)

    def objective(self, batch: Batch, phi_prior: tuple, theta_prior: tuple) -> dict[str, Tensor]:
        """One draw of the parts of the negative ELBO: `nll`, `kl_phi`, `kl_theta`, summed over the batch."""
        scale, shape = self.posterior(self.raw["phi"])
        phi = self.draw(scale, shape)
        kl_phi = self.kl(scale, shape, *phi_prior).sum()
        kl_theta = []
        mask = batch.attention_mask

        def change(path: str, x: Tensor) -> Tensor:
            distribution = self.posterior(
                torch.einsum("bti,ri->btr", seen(self.model, x), self.raw[f"theta/{path}"])
            )
            theta = self.draw(*distribution)
            kl = self.kl(*distribution, *theta_prior).sum(-1)
            kl_theta.append(kl.sum() if path == self.head else kl[mask].sum())
            gate = phi[self.paths.index(path)] * theta
            up, down = parts_of(self.model, path)
            if down is not None:
                gate = gate * torch.einsum("bti,ri->btr", x, down)
            return 16.0 / self.model.r * torch.einsum("btr,or->bto", gate, up)

        log_probs = hooked_forward(batch, self.lm, self.paths, self.head, change)
        nll = -log_probs[torch.arange(len(batch)), batch.labels].sum()
        return {"nll": nll, "kl_phi": kl_phi, "kl_theta": torch.stack(kl_theta).sum(), "log_probs": log_probs}

    def loss(self, batch: Batch, phi_prior: tuple = (1.0, 1.0), theta_prior: tuple = (1.0, 1.0)) -> Tensor:
        parts = self.objective(batch, phi_prior, theta_prior)
        return self.model.num_data / len(batch) * (parts["nll"] + parts["kl_theta"]) + parts["kl_phi"]


def quadrature_kl(mean: Tensor, kappa: Tensor, a: float, b: float) -> Tensor:
    """KL(Weibull || Gamma(a, b)) in float64 by the trapezoid rule over w = log E, E ~ Exp(1); any shape.

    t = scale * E ** kappa, so the integrand is smooth and dies off at both ends whatever kappa is.
    """
    w = torch.linspace(-60.0, 6.0, 4001, dtype=torch.float64)
    mean, kappa = mean.double().unsqueeze(-1), kappa.double().unsqueeze(-1)
    log_t = mean.log() - torch.as_tensor(special.gammaln((1 + kappa).numpy())) + kappa * w
    log_q = -kappa.log() - log_t + w - w.exp()
    log_p = a * math.log(b) - math.lgamma(a) + (a - 1) * log_t - b * log_t.exp()
    return torch.trapezoid((w - w.exp()).exp() * (log_q - log_p), w)
