"""Pretrain the shipped backbone: `build_backbone(out)` writes a Hugging Face folder."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from bara_pyro.errors import ConfigError
from bara_pyro.microworld.text import corpus
from bara_pyro.microworld.words import (
    END,
    OPTION_LABELS,
    PAD,
    RELATIONS,
    UNKNOWN,
    base_words,
    make_names,
    option,
)
from bara_pyro.microworld.world import NUM_NEWCOMERS, NUM_RESIDENTS, WORLD_SEED, World


def vocabulary() -> dict[str, int]:
    """Return the id of every word; the names come last."""
    words = base_words() + make_names(NUM_RESIDENTS + NUM_NEWCOMERS)
    return {word: i for i, word in enumerate(words)}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer, which pads on the left and adds no special tokens."""
    core = Tokenizer(WordLevel(vocabulary(), unk_token=UNKNOWN))
    core.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token=UNKNOWN, pad_token=PAD, eos_token=END, padding_side="left"
    )


HIDDEN_SIZE, LAYERS, HEAD_SIZE = 128, 4, 32
STEPS = 5000
BATCH = 48
LEARNING_RATE = 3e-3
WARM_UP = 100
GAIN = 4.0  # factor on the norms before all adapted layers; see `_rescale_norms`
PROMPT_WEIGHT = 0.05  # prompts are mostly unpredictable: at full weight they would dominate the loss
SHARD = 4800  # lines sorted by length at a time, so that batches have little padding


@dataclass(frozen=True)
class BuildReport:
    """The result of a pretraining.

    Attributes:
        steps: number of optimiser steps.
        parameters: number of parameters of the backbone.
        final_loss: mean loss over the last tenth of the steps, in nats per (weighted) token.
        megabytes: size of the written folder, in millions of bytes.
    """

    steps: int
    parameters: int
    final_loss: float
    megabytes: float


def backbone_config(
    vocab_size: int, pad: int, end: int, hidden_size: int = HIDDEN_SIZE, layers: int = LAYERS
) -> LlamaConfig:
    """Return the configuration of a backbone with an untied head; by default the shipped one.

    A Llama with attention biases computes the same as a Qwen2. It is called Llama because `AutoTokenizer`
    gives every folder of type "qwen2" a byte-level tokenizer.
    """
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 5 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // HEAD_SIZE,
        num_key_value_heads=hidden_size // HEAD_SIZE,
        max_position_embeddings=256,
        initializer_range=0.08,
        attention_bias=True,
        tie_word_embeddings=False,
        pad_token_id=pad,
        bos_token_id=None,
        eos_token_id=end,
    )


def build_backbone(
    out: str | Path,
    seed: int = 0,
    steps: int | None = None,
    progress: Callable[[int, int, float], None] | None = None,
    *,
    world: int = WORLD_SEED,
    hidden_size: int = HIDDEN_SIZE,
    layers: int = LAYERS,
) -> BuildReport:
    """Pretrain the backbone on the corpus of a world, and write it with its tokenizer to a folder.

    Args:
        out: the folder, created if needed.
        seed: seed of the initial weights and of the corpus.
        steps: optimiser steps; default: `STEPS`.
        progress: called after each step with (step, steps, loss).
        world: seed of the world of the corpus; it is stored in the model's configuration.
        hidden_size: width, a multiple of 32.
        layers: number of layers.

    Raises:
        ConfigError: a size is out of range.
    """
    if hidden_size < HEAD_SIZE or hidden_size % HEAD_SIZE or layers < 1:
        raise ConfigError(
            f"hidden_size={hidden_size} must be a multiple of {HEAD_SIZE} and layers={layers} at least 1."
        )
    out, steps = Path(out), STEPS if steps is None else steps
    tokenizer = build_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ends = tokenizer.pad_token_id, tokenizer.eos_token_id
        config = backbone_config(len(tokenizer), *ends, hidden_size, layers)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
        _compose_options(model, tokenizer.get_vocab())
        losses = _pretrain(model, tokenizer, World(world), seed, steps, progress)
    if world != WORLD_SEED:
        model.config.microworld_seed = world
    _rescale_norms(model, GAIN)
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    tail = losses[-max(1, steps // 10) :]
    return BuildReport(
        steps,
        sum(p.numel() for p in model.parameters()),
        sum(tail) / max(1, len(tail)),
        sum(file.stat().st_size for file in out.iterdir()) / 1e6,
    )


@torch.no_grad()
def _compose_options(model: PreTrainedModel, word_ids: dict[str, int]) -> None:
    """Initialise each option from its label and its value, and the head from the embedding.

    Matching an option with its value is then one rule for all options, learnt in a few hundred steps.
    """
    table = model.get_input_embeddings().weight
    for label in OPTION_LABELS:
        for value in (value for relation in RELATIONS for value in relation.values):
            both = table[word_ids[label]] + table[word_ids[value]]
            table[word_ids[option(label, value)]] = both / 2**0.5
    model.get_output_embeddings().weight.copy_(table)


@torch.no_grad()
def _rescale_norms(model: PreTrainedModel, gain: float) -> None:
    """Multiply the gains of the norms and divide the weights that read them, which changes no output.

    Adapters on these weights then get larger inputs, so that the usual learning rates of large models also
    suit this small one.
    """
    for layer in model.model.layers:
        layer.input_layernorm.weight.mul_(gain)
        for read in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            read.weight.div_(gain)
    model.model.norm.weight.mul_(gain)
    model.get_output_embeddings().weight.div_(gain)


def _pretrain(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    world: World,
    seed: int,
    steps: int,
    progress: Callable[[int, int, float], None] | None,
) -> list[float]:
    """Train in place and return the loss of each step."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=(0.9, 0.98),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_UP, max(0.02, 1.5 * (1 - step / steps)))
    )
    losses = []
    model.train()
    for step, (ids, weights) in enumerate(_batches(tokenizer, world, seed, steps), start=1):
        logits = model(input_ids=ids[:, :-1]).logits
        each = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (each * weights.flatten()).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if progress is not None:
            progress(step, steps, losses[-1])
    return losses


def _batches(
    tokenizer: PreTrainedTokenizerFast, world: World, seed: int, count: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield `count` right-padded batches: ids, `B x T`, and the weight of each next token, `B x (T - 1)`."""
    word_ids = tokenizer.get_vocab()
    generator = torch.Generator().manual_seed(seed)
    shard: list[list[int]] = []
    done = 0
    for line in corpus(world, seed, count * BATCH + SHARD):
        shard.append([word_ids[word] for word in line.split()])
        if len(shard) < SHARD:
            continue
        shard.sort(key=len)
        for i in torch.randperm(SHARD // BATCH, generator=generator).tolist():
            if done == count:
                return
            done += 1
            yield _collate(shard[i * BATCH : (i + 1) * BATCH], tokenizer.pad_token_id, word_ids[":"])
        shard = []


def _collate(rows: list[list[int]], pad: int, colon: int) -> tuple[Tensor, Tensor]:
    """Pad rows on the right; tokens before a ":" belong to the prompt and get the weight `PROMPT_WEIGHT`."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    weights = (ids[:, 1:] != pad).float()
    to_come = (ids == colon).flip(1).cumsum(1).flip(1)[:, 1:] > 0
    weights[to_come] = PROMPT_WEIGHT
    return ids, weights
