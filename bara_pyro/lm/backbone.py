"""Wrapper of a frozen Hugging Face causal language model, the part of a program that is not trained."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from bara_pyro.data.types import TokenRows
from bara_pyro.errors import BackboneError, ConfigError, DataError, unknown
from bara_pyro.fast import SHORTCUTS
from bara_pyro.fast.checkpointing import Change, changing
from bara_pyro.fast.frozen_states import FrozenStates
from bara_pyro.fast.prefix import KeysAndValues, Prefix, not_run
from bara_pyro.lm import quantized
from bara_pyro.lm.inputs import cache_argument, inputs_after, inputs_of, positions
from bara_pyro.lm.targets import Target
from bara_pyro.moved import warn_renamed

# Largest accepted difference between a language model and its parts, relative to the largest value.
# Rounding causes a few millionths in float32, and a few units in the last place in half precision.
TOLERANCE, HALF_TOLERANCE, UNITS = 3e-5, 0.02, 8
# Settings of the number of tokens that a layer attends to, under each architecture's name.
WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
REUSE = {"frozen_layers", "prefixes", "last_layer"}  # what the old attribute `reuse` switched
GAP = 32  # columns of padding; enough to change the result if a token's position is its column


HOLDING: "WeakSet[PreTrainedModel]" = WeakSet()
"""Language models to which a program is attached (`bara_pyro.attached`)."""


class Backbone:
    """A frozen language model, split into body, output embedding and final transformation of its logits.

    It is a plain object, not an `nn.Module`, so that Pyro does not register its frozen parameters. It calls
    `eval()` and `requires_grad_(False)` on the wrapped model. Layers with quantised weights get a forward
    pass that supports gradients (`bara_pyro.lm.quantized`); nothing else is changed.

    Args:
        lm: a Hugging Face causal language model.
        tokenizer: its tokenizer, or None.
        name: the user's name for it, for messages and configuration files.

    Attributes:
        states: hidden states below the adapters.
        last_apart: whether the last layer can run for the last tokens only (`read_last`).
        window: largest number of tokens (columns, including padding) that all layers see completely; None for
            no limit.
        continues: whether tokens can continue from others that were read before (`read`).
        takes_segments: whether a row can hold several texts that do not see one another.
        checkpointing: whether training keeps only each layer's input and recomputes the rest
            (`bara_pyro.fast.checkpointing`). It replaces the language model's own checkpointing and is on if
            that was on.

    Raises:
        BackboneError: 4-bit weights are in a layout that only supports inference.

    Examples:
        >>> import bara_pyro as bp
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24}
        >>> config = LlamaConfig(num_hidden_layers=2, num_attention_heads=2, **sizes)
        >>> lm = LlamaForCausalLM(config)  # any causal language model
        >>> model = bp.models.LoRA(bp.Backbone(lm), num_data=100, r=4)
        >>> [target.path for target in model.targets if "layers.0" in target.path]
        ['model.layers.0.self_attn.q_proj', 'model.layers.0.self_attn.v_proj']
    """

    def __init__(
        self, lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, name: str = ""
    ) -> None:
        quantized.keep_gradients(lm)
        quantized.keep_small(lm)
        self.lm = lm.eval().requires_grad_(False)
        self.tokenizer: PreTrainedTokenizerBase = tokenizer  # None if no text is read
        self.name = name
        text = lm.config.get_text_config()
        # Cohere multiplies its logits, Granite divides them, Gemma soft-caps them.
        self._scale = (getattr(text, "logit_scale", None) or 1.0) / (
            getattr(text, "logits_scaling", None) or 1.0
        )
        self._cap: float | None = getattr(text, "final_logit_softcapping", None)
        self.states = FrozenStates(lm)
        self._shortcuts: frozenset[str] = frozenset(SHORTCUTS)
        self.last_apart = len(self.states.layers) > 1
        sizes = [getattr(text, name, None) for name in WINDOWS]
        self.window = min((size for size in sizes if isinstance(size, int) and size > 0), default=None)
        self.continues = self.takes_segments = True
        self.rounding = max(TOLERANCE, min(HALF_TOLERANCE, UNITS * torch.finfo(lm.dtype).eps))
        self.tolerance = self.rounding  # `verify` raises it if rounding depends on the length of a text
        self.quantized: str | None = None  # "int8" or "int4" if `load_backbone` quantised the weights
        self.verified = False  # see `bara_pyro.lm.verifying.verify_once`
        self.checkpointing = any(getattr(module, "gradient_checkpointing", False) for module in lm.modules())

    def __repr__(self) -> str:
        size = sum(weight.numel() for weight in self.lm.parameters())
        kind = type(self.lm).__name__
        return f"Backbone {self.name!r}: {kind}, {size:,} frozen parameters, {self.dtype}, {self.device}"

    @property
    def shortcuts(self) -> frozenset[str]:
        """Names of the shortcuts that are on, by default all of them (`bara_pyro.fast`).

        Without them results are the same up to rounding. Change them before you create a program:

            backbone.shortcuts -= {"answer_rows"}

        Raises:
            ConfigError: a name is unknown.
        """
        return self._shortcuts

    @shortcuts.setter
    def shortcuts(self, names: Iterable[str]) -> None:
        chosen = frozenset(names)
        for name in sorted(chosen.difference(SHORTCUTS)):
            raise ConfigError(unknown("shortcut", name, SHORTCUTS))
        self._shortcuts = chosen

    @property
    def reuse(self) -> bool:
        """Old name for three of the `shortcuts`."""
        warn_renamed("Backbone.reuse", "Backbone.shortcuts")
        return self.shortcuts >= REUSE

    @reuse.setter
    def reuse(self, on: bool) -> None:
        warn_renamed("Backbone.reuse", "Backbone.shortcuts")
        self.shortcuts = self.shortcuts | REUSE if on else self.shortcuts - REUSE

    def check(self) -> None:
        """Check that the language model is in evaluation mode and that no program is attached to it.

        Raises:
            BackboneError: it is in training mode, or a program is attached (`bara_pyro.attached`).
        """
        if self.lm.training:
            raise BackboneError(
                "The language model is in training mode: call eval() on it. To save memory in training, set "
                "backbone.checkpointing = True."
            )
        self.check_free()

    def check_free(self) -> None:
        """Check that no program is attached, because a second one would be added to the first.

        Raises:
            BackboneError: a program is attached.
        """
        if self.lm in HOLDING:
            raise BackboneError(
                "A program is already attached to this language model: leave its `with bara_pyro.attached` "
                "block before you use another program."
            )

    @property
    def device(self) -> torch.device:
        """Device of rows, adapters and guide: the first device of the weights."""
        return self.lm.device

    @property
    def world(self) -> int | None:
        """Seed of the microworld of its pretraining; None if unknown."""
        return getattr(self.lm.config, "microworld_seed", 0 if self.name == "microworld" else None)

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the frozen weights."""
        return self.lm.dtype

    @property
    def settings(self) -> dict[str, str]:
        """Its configuration: `name`, `dtype` (of the frozen weights) and `device`."""
        spread = getattr(self.lm, "hf_device_map", None)
        dtype = self.quantized or str(self.dtype).removeprefix("torch.")
        return {"name": self.name, "dtype": dtype, "device": "auto" if spread else str(self.device)}

    def hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        segments: Tensor | None = None,
        *,
        copies: int = 1,
        below: int = 0,
        past: Prefix | None = None,
    ) -> Tensor:
        """Return the last hidden states, `(copies B) x T x d`.

        Positions are counted from the first real token, so that left padding has no effect even for
        architectures with absolute positions.

        Args:
            input_ids: long, `B x T`.
            attention_mask: bool, `B x T`.
            segments: long, `B x T`, or None for one text per row; see `bara_pyro.data.types.Batch`.
            copies: number of times to run the rows, each with other draws in the adapters.
            below: number of lowest layers without adapters; they run once per row, and rows seen before are
                cached.
            past: prefix from which the rows continue; it also determines the layers that are not run.
        """
        tokens = TokenRows(input_ids, attention_mask, segments)
        inputs = self._inputs(tokens.repeat(copies) if copies > 1 else tokens)
        if past is not None:
            rows = past.rows(len(inputs["input_ids"]))
            inputs, cache = inputs_after(inputs, past.mask[rows]), past.cache(rows)
            with self._above(past.below, past.rest, len(rows)):
                return self.lm.base_model(**inputs, **{self._cache_name: cache})[0].to(input_ids.device)
        with self._above(below, self.lower(tokens, below), len(inputs["input_ids"])):
            return self.lm.base_model(**inputs)[0].to(input_ids.device)

    def changed(self, changes: Mapping[nn.Module, Change], *, below: int = 0) -> AbstractContextManager[None]:
        """Add updates to the outputs of the body's linear layers while a block runs.

        `changes` is layer -> function that returns its update; the lowest `below` decoder layers hold none.
        """
        upper = self.states.layers[below:] if self.checkpointing and torch.is_grad_enabled() else ()
        return changing(changes, recomputed=upper)

    def frozen_layers(self, targets: Iterable[Target]) -> int:
        """Return the number of lowest layers without targets, which need not run again."""
        if "frozen_layers" not in self.shortcuts:
            return 0
        return self.states.depth(t.path for t in targets if not t.is_head)

    def lower(self, tokens: TokenRows, below: int) -> Tensor | None:
        """Return the states above the lowest `below` layers, `B x T x d`; None if `below` is 0."""
        return self.states.of(below, tokens, self._inputs) if below else None

    def read(
        self,
        tokens: TokenRows,
        *,
        copies: int = 1,
        below: int = 0,
        states: Tensor | None = None,
    ) -> Prefix:
        """Run the body on rows from which others will continue; return their keys and values.

        Args:
            tokens: the rows.
            copies: as in `hidden`.
            below: number of lowest layers that are not run.
            states: output of these layers, `B x T x d`.
        """
        cache = DynamicCache()
        self._fill(cache, tokens, copies, below, states)
        run = [(layer.keys, layer.values) for layer in cache.layers[below:]]
        mask = tokens.attention_mask.bool().repeat(copies, 1)
        layers = (*not_run(below, mask, self.dtype), *run)
        return Prefix(layers, mask, per_draw=copies > 1, below=below)

    def read_last(
        self,
        tokens: TokenRows,
        *,
        copies: int = 1,
        below: int = 0,
        states: Tensor | None = None,
        width: int = 1,
    ) -> Prefix | None:
        """Run all layers except the last, of which only keys and values are computed; arguments as in `read`.

        Returns:
            The last layer's keys and values of all tokens except the last `width`, which will continue
            through it, a prefix for each copy of each row; None if that layer does not expose them.
        """
        last = len(self.states.layers) - 1
        cache = KeysAndValues(last)
        with self.states.noting(last) as noted:
            self._fill(cache, tokens, copies, below, states)
        mask = tokens.attention_mask.bool().repeat(copies, 1)
        return cache.prefix(noted[0], mask, width)

    def _fill(
        self, cache: DynamicCache, tokens: TokenRows, copies: int, below: int, states: Tensor | None
    ) -> None:
        """Run the body on rows and keep keys and values in a cache; see `read`."""
        inputs = self._inputs(tokens.repeat(copies) if copies > 1 else tokens)
        with self._above(below, states, len(inputs["input_ids"])):
            self.lm.base_model(**{**inputs, "use_cache": True}, **{self._cache_name: cache})

    def _above(self, below: int, states: Tensor | None, sequences: int) -> AbstractContextManager[None]:
        if states is None:
            return nullcontext()
        return self.states.standing_in(below, states.repeat(sequences // len(states), 1, 1))

    @cached_property
    def _cache_name(self) -> str:
        return cache_argument(self.lm.base_model)

    def check_tokens(self, ids: Tensor) -> None:
        """Check that the language model has embeddings of all tokens.

        Tokens are checked only if the tokenizer has such tokens, because the check synchronises a GPU.

        Raises:
            DataError: a token has no embedding.
        """
        if not self._lacks_embeddings or not ids.numel():
            return
        known, largest = self.lm.get_input_embeddings().weight.shape[0], int(ids.max())
        if largest >= known:
            raise DataError(
                f"A text contains token {largest} ({self.tokenizer.convert_ids_to_tokens(largest)!r}), but "
                f"{type(self.lm).__name__} has only {known} embeddings: remove it from the text, or call "
                "resize_token_embeddings and pretrain it."
            )

    @cached_property
    def _lacks_embeddings(self) -> bool:
        """Whether the tokenizer has tokens without an embedding."""
        if not isinstance(self.tokenizer, PreTrainedTokenizerBase):
            return False
        known = self.lm.get_input_embeddings().weight.shape[0]
        return max(self.tokenizer.get_vocab().values(), default=0) >= known

    def _inputs(self, tokens: TokenRows) -> dict[str, Any]:
        self.check_tokens(tokens.input_ids)
        if tokens.segments is not None:
            self._check_segments(tokens.segments, tokens.attention_mask)
        return inputs_of(tokens, self.dtype)

    def _check_segments(self, segments: Tensor, mask: Tensor) -> None:
        """Refuse several texts in a row if the language model cannot separate them."""
        name, width = type(self.lm).__name__, segments.shape[1]
        if self.takes_segments and (self.window is None or width <= self.window):
            return
        # Texts of answers continue from one prompt; packed replies share no token.
        packed = not bool(((segments == 0) & mask.bool()).any())
        way_out = "score letters with labels='letters' (--labels letters)"
        if packed:
            way_out = "train without packing=True (--packing)"
        if not self.takes_segments:
            raise BackboneError(f"{name} cannot read several texts in one row: {way_out}.")
        what = "a row of packed replies" if packed else "a question with the texts of all its answers"
        raise BackboneError(
            f"{name} has layers that attend to {self.window} tokens, but {what} has {width}: lower "
            f"task.max_length, or {way_out}."
        )

    def goes_on_after_gaps(self, width: int) -> bool:
        """Return whether rows of `width` columns may have padding between prefix and continuation."""
        return (self.window is None or width <= self.window) and self._positions_alone

    @cached_property
    def _positions_alone(self) -> bool:
        """Whether a token's position is its position id, not its column as with ALiBi."""
        ids = self.few_tokens()
        ones = torch.ones_like(ids)
        gap = ids[:, :1].repeat(1, GAP)
        rest, real = torch.cat([gap, ids[:, 3:]], dim=1), torch.cat([0 * gap, ones[:, 3:]], dim=1)
        with torch.no_grad():
            past = self.read(TokenRows(ids[:, :3], ones[:, :3]))
            return self.alike(self.hidden(ids, ones)[:, -1:], self.hidden(rest, real, past=past)[:, -1:])

    def alike(self, whole: Tensor, parts: Tensor) -> bool:
        """Return whether two results are equal up to rounding."""
        return apart(whole, parts) <= self.tolerance

    def few_tokens(self) -> Tensor:
        """Return four tokens of the vocabulary, `1 x 4`."""
        vocabulary = self.lm.get_input_embeddings().weight.shape[0]
        return torch.arange(4, device=self.device).remainder(vocabulary).unsqueeze(0)

    def logits(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the output embedding's values for hidden states, `... x V`, before scale and soft cap.

        The caller adds the layer's adapter; `finished` turns the sum into logits.

        Args:
            hidden: `... x d`.
            rows: token ids, long, `C`: only their values are computed, `... x C`; None: all of the
                vocabulary.
        """
        head, home = self.lm.get_output_embeddings(), hidden.device
        hidden = hidden.to(head.weight.device)
        if rows is not None:
            self.check_tokens(rows)
            rows = rows.to(head.weight.device)
            if "answer_rows" in self.shortcuts:
                bias = getattr(head, "bias", None)
                return F.linear(hidden, head.weight[rows], None if bias is None else bias[rows]).to(home)
        out = head(hidden.contiguous())  # for a view, torch would run one product per row
        return (out if rows is None else out[..., rows]).to(home)

    @property
    def vocabulary(self) -> int:
        """Number of tokens of the output embedding."""
        return int(self.lm.get_output_embeddings().weight.shape[0])

    @property
    def context(self) -> int | None:
        """Largest number of tokens of a text; None if the architecture sets no limit."""
        return positions(self.lm)

    def check_room(self, tokens: int, what: str, way_out: str = "shorten it") -> None:
        """Check that `what`, of the given number of tokens, fits the context.

        Raises:
            ConfigError: it is longer than the context.
        """
        if self.context is not None and tokens > self.context:
            raise ConfigError(
                f"{what} takes {tokens} tokens, more than the {self.context} of the language model: "
                f"{way_out}."
            )

    @property
    def plain_head(self) -> bool:
        """Whether the logits are the output embedding's values without scale or soft cap."""
        return self._scale == 1 and self._cap is None

    def finished(self, logits: Tensor) -> Tensor:
        """Apply the architecture's scale and soft cap to the output embedding's values."""
        if self._scale != 1:
            logits = logits * self._scale
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)


def apart(whole: Tensor, parts: Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    whole, parts = whole.float(), parts.float()
    return float((parts - whole).abs().max() / whole.abs().max())
