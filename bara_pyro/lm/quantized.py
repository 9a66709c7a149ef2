"""Frozen weights in 8 or 4 bits, by optional libraries.

Only the weights of the body's linear layers are quantised. Activations, norms, embeddings and the output
embedding, from which single rows are read, stay in bfloat16; adapters and latents stay in float32. `"int8"`
uses torchao, with one scale per output feature. `"int4"` uses bitsandbytes' NF4 in blocks of 64, as in QLoRA
(Dettmers et al. 2023, arXiv 2305.14314).
"""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import BitsAndBytesConfig, TorchAoConfig

from bara_pyro.errors import BackboneError, require_packages

PACKAGES = {"int8": ("torchao", "accelerate"), "int4": ("bitsandbytes", "accelerate")}

# Attributes that only quantised weights have.
MARKS = {"int8": "qdata", "int4": "quant_state"}


def settings(dtype: str, device: str | torch.device) -> dict[str, Any]:
    """Return arguments for `from_pretrained` that quantise weights to "int8" or "int4" on loading.

    A `BackboneError` if a package is not installed.
    """
    require_packages(f"The dtype {dtype}", PACKAGES[dtype], "quantized")
    if dtype == "int8":
        from torchao.quantization import Int8WeightOnlyConfig

        config: TorchAoConfig | BitsAndBytesConfig = TorchAoConfig(Int8WeightOnlyConfig())
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    return {"dtype": torch.bfloat16, "quantization_config": config, "device_map": {"": torch.device(device)}}


def check(lm: nn.Module, dtype: str) -> None:
    """Raise a `BackboneError` unless a loaded language model is quantised and can compute with these weights.

    A layer with int8 weights must not override `forward`.
    """
    layers = [layer for layer in lm.modules() if hasattr(getattr(layer, "weight", None), MARKS[dtype])]
    special = [layer for layer in layers if dtype == "int8" and type(layer).forward is not nn.Linear.forward]
    if special or not layers:
        raise BackboneError(
            f"The linear layers of {type(lm).__name__} cannot be quantised to {dtype}: choose dtype bfloat16."
        )


def keep_gradients(lm: nn.Module) -> None:
    """Prevent bitsandbytes from converting 4-bit weights to a layout without gradients.

    On a CPU with AVX512-BF16 the first forward pass without gradients would convert them. Training afterwards
    would silently lose the gradient through those layers. Weights that were converted already raise a
    `BackboneError`.
    """
    for name, layer in lm.named_modules():
        if not hasattr(layer, "support_avx512bf16_for_cpu"):
            continue
        layer.support_avx512bf16_for_cpu = False
        state = getattr(layer.weight, "quant_state", None)
        if getattr(state, "packing_format_for_cpu", False):
            raise BackboneError(
                f"bitsandbytes has converted the 4-bit weights of {name} to a layout without gradients: load "
                "the language model again and wrap it in a Backbone before its first forward pass."
            )


class Int8Product(torch.autograd.Function):
    """`x W'` for int8 weights with one scale per row; the backward pass converts the weights again.

    torchao's product keeps the converted weights of every layer until the backward pass, at two bytes per
    weight, which loses the memory that int8 saves (peak on an H100 with 7 billion parameters and four rows of
    300 tokens: 26.5 GiB, against 20.4 in bfloat16).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, data: Tensor, scale: Tensor) -> Tensor:
        """Return `... x out` for `x`, `... x in`, int8 weights `out x in` and scales `out x 1`."""
        ctx.save_for_backward(data, scale)
        product = torch.mm(x.reshape(-1, x.shape[-1]), data.t().to(x.dtype))
        return (product * scale.to(x.dtype).flatten()).reshape(*x.shape[:-1], len(data))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient with respect to `x`; the weights are frozen."""
        data, scale = ctx.saved_tensors
        scaled = (grad * scale.to(grad.dtype).flatten()).reshape(-1, len(data))
        return torch.mm(scaled, data.to(grad.dtype)).reshape(*grad.shape[:-1], data.shape[1]), None, None


def keep_small(lm: nn.Module) -> None:
    """Give layers with int8 weights a product that keeps only the int8 weights for its gradient."""
    for layer in lm.modules():
        if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
            continue
        weight = cast(Any, layer.weight)
        only_weights = (
            getattr(weight, "act_quant_kwargs", 0) is None and getattr(weight, "act_pre_scale", 0) is None
        )
        if only_weights and "forward" not in vars(layer):  # nobody else has replaced it
            rows, columns = weight.qdata.shape
            if weight.scale.shape == (rows, 1) and list(weight.block_size) == [1, columns]:
                layer.forward = partial(_int8_forward, layer)  # type: ignore[method-assign]


def _int8_forward(layer: nn.Linear, x: Tensor) -> Tensor:
    weight = cast(Any, layer.weight)
    product = cast(Tensor, Int8Product.apply(x, weight.qdata, weight.scale))
    return product if layer.bias is None else product + layer.bias
