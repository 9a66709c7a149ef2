"""The systems to benchmark: training step and prediction of each contestant on the same random backbone."""

import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import peft
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from bara_pyro.cli.architectures import shaped
from bara_pyro.core.distributions import KAPPA_MIN
from bara_pyro.core.distributions.weibull import EULER
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.optimizers import adamw
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.errors import DataError
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods import build, method_config
from bara_pyro.models.bara import BaRA

TARGETS = ["q_proj", "v_proj", "lm_head"]
NUM_DATA = 640
BETA = 1e-5
METHODS = ("lora", "additive", "gate", "blob")
RANK = 8


@dataclass(frozen=True)
class Size:
    """Dimensions of a language model and its batches.

    The model is a random Qwen2, or the model in the local Hugging Face folder `folder`, loaded in bfloat16.
    """

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    rows: int
    tokens: int
    folder: str = ""


SIZES = {
    "micro": Size(400, 128, 384, 4, 4, 2, 4, 64),
    "896": Size(4096, 896, 4864, 4, 14, 2, 4, 128),
    # Shape and vocabulary of Qwen2.5-0.5B.
    "896x24": Size(151936, 896, 4864, 24, 14, 2, 2, 64),
    "qwen2.5-7b": Size(152064, 3584, 18944, 28, 28, 4, 4, 300),
}


def size_of(name: str) -> Size:
    """Return the size with this name, or that of the model in a local folder (4 rows of 128 tokens).

    Raises:
        DataError: `name` is neither a size nor a folder with a model.
    """
    if name in SIZES:
        return SIZES[name]
    if not (Path(name) / "config.json").exists():
        raise DataError(f"Unknown size {name!r}: choose {', '.join(SIZES)}, or a folder with a config.json.")
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", heads)
    shape = (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_hidden_layers)
    return Size(*shape, heads, kv_heads, rows=4, tokens=128, folder=name)


def make_lm(size: Size, device: str = "cpu", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return a language model of the given size, the same at every call; `dtype` applies to random ones."""
    if size.folder:
        return (
            AutoModelForCausalLM.from_pretrained(size.folder, dtype=torch.bfloat16, trust_remote_code=False)
            .to(device)
            .eval()
        )
    torch.manual_seed(0)
    config = shaped(Qwen2Config, *astuple(size)[:6])
    with torch.device(device):
        return Qwen2ForCausalLM._from_config(config, dtype=dtype).eval()


def make_batch(size: Size, rows: int | None = None) -> Batch:
    """Return random rows; the second half is padded on the left."""
    torch.manual_seed(1)
    rows = rows or size.rows
    ids = torch.randint(0, size.vocabulary, (rows, size.tokens))
    mask = torch.ones(rows, size.tokens, dtype=torch.bool)
    mask[rows // 2 :, : size.tokens // 4] = False
    labels = torch.arange(rows) % 4
    return Batch(ids, mask, torch.tensor([5, 6, 7, 8]), labels, tuple(map(str, range(rows))))


def write(out: Path | None, found: dict[str, Any]) -> None:
    """Write what a benchmark found to the JSON file of `--out`, if there is one."""
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")


def labels_of(batch: Batch) -> Tensor:
    """Return the labels of a batch from `make_batch`."""
    if batch.labels is None:
        raise DataError("The batch has no labels: use make_batch.")
    return batch.labels


def answer_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of the answer tokens at the last position (`B x C`), with PEFT's forward pass."""
    positions = (batch.attention_mask.cumsum(-1) - 1).clamp_min(0)
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask.long(),
        position_ids=positions,
        use_cache=False,
        logits_to_keep=1,
    ).logits
    return cast(Tensor, logits[:, -1, batch.answer_ids])


def peft_lora(
    of: Size | PreTrainedModel, *, r: int = RANK, targets: Sequence[str] = TARGETS
) -> tuple[Callable[[Batch], object], Callable[[Batch], Tensor], Callable[[], PreTrainedModel]]:
    """Return a training step, a forward pass and the removal of PEFT's LoRA (last position's logits only).

    Args:
        of: the language model, or the size of a random one.
        r: rank.
        targets: adapted modules.
    """
    config = peft.LoraConfig(r=r, lora_alpha=2 * r, target_modules=list(targets), lora_dropout=0.0)
    model = peft.get_peft_model(make_lm(of) if isinstance(of, Size) else of, config)
    optim = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, fused=True)

    def step(batch: Batch) -> None:
        optim.zero_grad(set_to_none=True)
        F.cross_entropy(answer_logits(model, batch).float(), labels_of(batch)).backward()
        optim.step()

    return step, torch.no_grad()(partial(answer_logits, model)), model.unload


def inference(name: str, backbone: Backbone, r: int = RANK, adapter: AdapterOptions | None = None) -> SVI:
    """Return the SVI object of a form of BaRA (`additive`, `gate`) or of a registered method, with rank r."""
    options: AdapterOptions = {"r": r, **(adapter or {})}
    if name in ("additive", "gate"):
        model: AdaptedLM = BaRA(
            backbone, NUM_DATA, form="gate" if name == "gate" else "additive", beta_theta=BETA, **options
        )
        guide: SiteGuide = WeibullGuide(model)
    else:
        model, guide = build(method_config(name), backbone, NUM_DATA, options)
    return SVI(model, guide, adamw(model, guide, 1e-3))


def ours(
    size: Size, name: str, backbone: Backbone | None = None, *, r: int = RANK
) -> tuple[Callable[[Batch], object], Callable[[Batch, int], Tensor]]:
    """Return the training step and the prediction of a method of this library."""
    svi = inference(name, backbone or Backbone(make_lm(size)), r)
    return svi.step, lambda batch, samples: predict(svi.model, svi.guide, batch, samples=samples)


class HandWritten(nn.Module):
    """Additive BaRA and its negative ELBO in plain torch: no Pyro, no trace, no distribution objects."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.kl, self.Phi = torch.zeros(()), torch.zeros(())  # of the current forward pass
        self.lm = (make_lm(size).requires_grad_(False),)
        self.paths = [n for n, _ in self.lm[0].named_modules() if n.rsplit(".", 1)[-1] in TARGETS]
        self.A, self.B = nn.ParameterList(), nn.ParameterList()
        for path in self.paths:
            layer = self.lm[0].get_submodule(path)
            amortiser = nn.init.orthogonal_(torch.empty(16, layer.in_features))
            amortiser[8:] = 0
            self.A.append(nn.Parameter(amortiser))
            self.B.append(nn.Parameter(torch.zeros(layer.out_features, 8)))
        self.phi = nn.Parameter(torch.zeros(len(self.paths), 16))
        self.mask = torch.ones(())
        for i, path in enumerate(self.paths):
            if path != "lm_head":
                self.lm[0].get_submodule(path).register_forward_hook(self._hook(i))

    @staticmethod
    def draw(raw: Tensor) -> tuple[Tensor, Tensor]:
        """Return Weibull draws and their KL to Gamma(1, 1), entry by entry."""
        level, kappa = F.softplus(raw).chunk(2, dim=-1)
        mean, kappa = level.clamp_min(1e-8), kappa.clamp(KAPPA_MIN, 1.0)
        log_norm = torch.lgamma(1 + kappa)
        noise = torch.empty_like(mean).exponential_().clamp_min(1e-38).log()
        value = mean * torch.exp(kappa * noise - log_norm)
        kl = EULER * kappa - (mean.log() - log_norm) - kappa.log() + mean - EULER - 1
        return value, kl

    def change(self, i: int, x: Tensor, mask: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the change of layer i and add its KL."""
        theta, kl = self.draw(F.linear(x, self.A[i]))
        self.kl = self.kl + (kl.sum(-1) * mask).sum()
        up = self.B[i] if rows is None else self.B[i][rows]
        return F.linear(self.Phi[i] * theta, up * 2.0)

    def _hook(self, i: int) -> Callable:
        return lambda layer, args, output: output + self.change(i, args[0], self.mask)

    def loss(self, batch: Batch) -> Tensor:
        """Return the negative ELBO in nats per example."""
        lm = self.lm[0]
        self.mask, self.kl = batch.attention_mask, torch.zeros(())
        self.Phi, kl_phi = self.draw(self.phi)
        positions = (batch.attention_mask.cumsum(-1) - 1).clamp_min(0)
        hidden = lm.model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask.long(),
            position_ids=positions,
            use_cache=False,
        )[0][:, -1]
        logits = F.linear(hidden, lm.lm_head.weight[batch.answer_ids])
        logits = logits + self.change(len(self.paths) - 1, hidden, torch.ones(()), batch.answer_ids)
        nll = F.cross_entropy(logits, labels_of(batch))
        return nll + BETA * self.kl / len(batch) + kl_phi.sum() / NUM_DATA


def hand_written(size: Size) -> Callable[[Batch], object]:
    """Return the training step of `HandWritten`."""
    model = HandWritten(size)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6, fused=True)

    def step(batch: Batch) -> None:
        optim.zero_grad(set_to_none=True)
        model.loss(batch).backward()
        optim.step()

    return step
