"""PEFT's tuner for BaRA, and its registration."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from peft import PeftConfig
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.tuners_utils import BaseTuner
from peft.utils import AuxiliaryTrainingWrapper
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bara_pyro.core.noise import CounterNoise
from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.extras.hub.peft.config import TYPE, BaRAConfig
from bara_pyro.extras.hub.peft.layer import BaRALayer, SharedDraw
from bara_pyro.lm.inputs import given_cache
from bara_pyro.lm.targets import find_targets
from bara_pyro.lm.verifying import fingerprint_of
from bara_pyro.models.bara import PHI
from bara_pyro.untrusted.patterns import matching


class BaRAModel(BaseTuner):
    """A language model with BaRA adapters, at their posterior means until `sample` is called."""

    prefix = "lora_"
    tuner_layer_cls = BaRALayer
    target_module_mapping: ClassVar[dict[str, list[str]]] = {}

    def __init__(self, model: nn.Module, config: Any, adapter_name: str, **options: Any) -> None:
        self.draw = SharedDraw()  # set first: PEFT's constructor creates the layers, which share it
        super().__init__(model, config, adapter_name, **options)
        self._placing: RemovableHandle | None = None

    def sample(self, seed: int | None, *, draw: int = 0, ids: Sequence[str] | None = None) -> None:
        """Use one draw of the gates from now on: one Phi, and one theta per row and token.

        The noise is a function of seed, draw, row and position, so repeated forward passes, `generate` with a
        cache and `core.prediction.predict` use the same gates.

        Args:
            seed: seed of the draws; None for posterior means.
            draw: number of the draw; `core.prediction.predict(..., samples=S, seed=seed)` averages draws 0 to
                S - 1.
            ids: identifiers of the rows of all following forward passes; by default their numbers in the
                batch, as in `predict` for rows without identifiers.
        """
        if self._placing is not None:
            self._placing.remove()
        self.draw.addresses = self._placing = None
        if seed is not None:
            place = partial(self._place, seed, draw, ids)
            self._placing = self.model.register_forward_pre_hook(place, with_kwargs=True)

    @contextmanager
    def _enable_peft_forward_hooks(self, *_: Any, **kwargs: Any) -> Iterator[None]:
        """Pass `adapter_names` to every layer; PEFT enters this around forward passes and `generate`."""
        names: Sequence[str] | None = kwargs.pop("adapter_names", None)
        if names is None:
            yield
            return
        self._check_names(names)
        beams = kwargs.get("num_beams") or 1
        names = [name for name in names for _ in range(beams)]  # each row is repeated for every beam
        layers = [
            module for module in self.modules() if isinstance(module, BaRALayer | AuxiliaryTrainingWrapper)
        ]
        with ExitStack() as hooks:
            for layer in layers:
                hook = layer.register_forward_pre_hook(
                    lambda _, args, kwargs: (args, {**kwargs, "adapter_names": names}), with_kwargs=True
                )
                hooks.callback(hook.remove)
            yield

    def _check_names(self, names: Sequence[str]) -> None:
        if self.training:
            raise ConfigError(
                "adapter_names works only for inference, but the model is in training mode: call eval()."
            )
        layers = (layer for layer in self.modules() if isinstance(layer, BaRALayer))
        known = {name for layer in layers for name in layer.lora_B}
        if unknown := sorted({*names} - known - {"__base__"}):
            raise ConfigError(
                f"adapter_names has {unknown[0]!r}, which is not an adapter: choose from "
                f"{', '.join(sorted(known))}, or '__base__' for none."
            )

    def unload(self) -> nn.Module:
        """Return the original language model, without adapters."""
        self.sample(None)
        return super().unload()

    def _place(
        self,
        seed: int,
        draw: int,
        ids: Sequence[str] | None,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Set the rows and positions of the next forward pass, and draw Phi."""
        mask = _mask(args, kwargs)
        rows = mask.shape[0]
        if mask.dim() != 2 or (ids is not None and len(ids) != rows):
            raise ConfigError(
                f"The attention mask has {mask.dim()} dimensions, and there are {rows} rows and "
                f"{rows if ids is None else len(ids)} ids: draws need a mask of two dimensions and one id "
                "per row."
            )
        self.draw.addresses = CounterNoise(
            seed,
            torch.tensor([draw], device=mask.device),
            tuple(map(str, range(rows))) if ids is None else ids,
            mask.long().cumsum(-1) - 1,
        )
        # For all adapters: each row of a batch may name its own.
        self.draw.phi = {name: self._phi(name, self.draw.addresses) for name in self.peft_config}

    def _phi(self, name: str, noise: CounterNoise) -> dict[str, Tensor]:
        """Draw Phi for all modules at once, as the program does: module path -> `r`."""
        layers = [layer for layer in self.model.modules() if isinstance(layer, BaRALayer)]
        layers = [layer for layer in layers if name in layer.lora_phi]
        if not layers:
            return {}
        raw = torch.stack([layer.weight_of(PHI, name).to(noise.draws.device) for layer in layers])
        distribution = layers[0].distribution(name, raw, layers[0].guides[name].r)
        drawn = noise.draw_global(PHI, distribution)[0]
        return {layer.path: value for layer, value in zip(layers, drawn, strict=True)}

    def _prepare_adapter_config(self, peft_config: PeftConfig, model_config: dict[str, Any]) -> PeftConfig:
        known = {name for name, _ in self.model.named_modules()}
        for path in peft_config.rank_pattern or {}:
            if path not in known:
                raise ConfigError(f"The rank pattern names {path!r}, which the language model does not have.")
        if peft_config.target_modules is None:
            peft_config.target_modules = {target.path for target in find_targets(self.model)}
        if isinstance(peft_config.target_modules, str) and peft_config.target_modules != "all-linear":
            # Not matched by PEFT, because Python's regular expressions may take exponential time.
            peft_config.target_modules = set(matching(peft_config.target_modules, sorted(known)))
        self._compare_base(peft_config)
        return peft_config

    def _compare_base(self, config: PeftConfig) -> None:
        """Warn if the language model is not the one that the run was trained on."""
        if (expected := config.backbone_fingerprint) is None:
            return
        if (current := fingerprint_of(_base_weights(self.model.state_dict()))) != expected:
            warnings.warn(
                f"The adapter was trained on a language model with fingerprint {expected}, and this one has "
                f"{current}: load {_right(config)}, unless this is the same model in float16 or quantised.",
                stacklevel=2,
            )

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: PeftConfig, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Refuse adapters of other sizes with one message; PEFT would list every matrix."""
        remapped = super()._remap_adapter_state_dict_for_load(model, config, adapter_name, state_dict)
        there = model.state_dict()
        for key, value in remapped.items():
            if key in there and there[key].shape != value.shape:
                raise BackboneError(
                    f"The adapter was trained on another language model ({key} has shape "
                    f"{tuple(value.shape)} in the adapter, {tuple(there[key].shape)} here): "
                    f"load {_right(config)}."
                )
        return remapped

    def _create_and_replace(
        self,
        peft_config: BaRAConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        **_: Any,
    ) -> None:
        layer = target if isinstance(target, BaRALayer) else BaRALayer(target, current_key, self.draw)
        layer.add(adapter_name, peft_config)
        if layer is not target:
            if adapter_name not in self.active_adapters:
                layer.requires_grad_(False)  # an adapter that is not active is not trained
            self._replace_module(parent, target_name, layer, target)


def _right(config: PeftConfig) -> str:
    """Return the name of the language model that an adapter was trained on, for messages."""
    return config.base_model_name_or_path or "the one that it was trained on"


def _base_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a language model under their original names, without adapters."""
    return {
        key.replace(".base_layer.", "."): value
        for key, value in state.items()
        if f".{BaRAModel.prefix}" not in key
    }


def _mask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the attention mask of a forward pass, cached tokens included, `B x T`."""
    mask = kwargs.get("attention_mask")
    if mask is not None:
        return mask
    tokens = args[0] if args else kwargs.get("input_ids")
    tokens = kwargs["inputs_embeds"] if tokens is None else tokens
    cache = given_cache(kwargs)
    before = 0 if cache is None else cache.get_seq_length()
    return torch.ones(tokens.shape[0], before + tokens.shape[1], dtype=torch.long, device=tokens.device)


def register() -> None:
    """Register BaRA with PEFT; calling this again has no effect.

    `peft.utils.register_peft_method` accepts only members of PEFT's own enumeration. PEFT's tables are looked
    up by the string in `adapter_config.json`, so an entry under that string is enough.
    """
    PEFT_TYPE_TO_CONFIG_MAPPING[TYPE] = BaRAConfig
    PEFT_TYPE_TO_TUNER_MAPPING[TYPE] = BaRAModel
    PEFT_TYPE_TO_PREFIX_MAPPING[TYPE] = BaRAModel.prefix
