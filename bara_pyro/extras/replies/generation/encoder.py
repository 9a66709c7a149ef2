"""Measure the distance between replies with a sentence encoder from a local folder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedModel

from bara_pyro.data.tokens import Tokenizer, check_unicode
from bara_pyro.errors import BackboneError, ConfigError, DataError
from bara_pyro.extras.replies.diversity import mean_cosine_distance
from bara_pyro.extras.replies.reward.rows import pad_right
from bara_pyro.lm.inputs import positions
from bara_pyro.lm.loading import AUTO, load_other
from bara_pyro.runs.system import find_device
from bara_pyro.untrusted.language_models import settings_in

LENGTHS = 10**6  # tokenizers without a limit give a larger number


def encoder_distance(
    replies: Sequence[Sequence[str]], encoder: str | Path, *, batch_size: int = 32, device: str = "cpu"
) -> NDArray[np.float64]:
    """Return the mean of 1 - cosine over the pairs of replies to each prompt (0 to 2, `prompts`).

    Every prompt has the same number of replies, two or more. Other arguments are those of `embed`.

    Raises:
        DataError: there are no replies, fewer than two per prompt, different numbers of them, or a reply has
            no tokens.
        BackboneError, ConfigError: see `embed`.

    Examples:
        >>> from bara_pyro.extras.replies.generation import encoder_distance
        >>> from bara_pyro.microworld import backbone_path
        >>> same, other = "the guest lives in the marsh .", "bimu keeps goats ."
        >>> distances = encoder_distance([[same, same], [same, other]], backbone_path())
        >>> bool(distances[0] < 1e-6 < distances[1])
        True
    """
    counts = sorted({len(of_prompt) for of_prompt in replies})
    if len(counts) != 1:
        found = f"{counts[0]} to {counts[-1]} replies per prompt" if counts else "no prompts"
        raise DataError(f"There are {found}: give the same number of replies to every prompt.")
    texts = [text for of_prompt in replies for text in of_prompt]
    vectors = embed(texts, encoder, batch_size=batch_size, device=device)
    return mean_cosine_distance(vectors.reshape(len(replies), counts[0], -1))


def embed(
    texts: Sequence[str], encoder: str | Path, *, batch_size: int = 32, device: str = "cpu"
) -> NDArray[np.float32]:
    """Return texts as vectors of length 1, `texts x dim`.

    A vector is the mean of the last hidden states over all tokens of a text (including the tokenizer's
    special tokens, without padding), scaled to length 1. sentence-transformers computes the same if a
    folder's modules are a transformer, mean pooling and normalisation; other modules, such as pooling by the
    first token or a dense layer, are ignored. Texts are cut at the end to the limit of encoder and tokenizer.
    Code that comes with a model is never run.

    Args:
        texts: the texts.
        encoder: a local Hugging Face folder of any model that `AutoModel` reads, except encoder-decoders.
        batch_size: texts per batch; texts of similar length are batched. It affects only rounding.
        device: device to compute on.

    Raises:
        BackboneError: the folder cannot be read, lacks weights, or contains an encoder-decoder.
        DataError: there are no texts, or a text has no tokens or is not valid Unicode.
        ConfigError: `batch_size` is not positive, or the device is unknown.

    Examples:
        >>> from bara_pyro.extras.replies.generation import embed
        >>> from bara_pyro.microworld import backbone_path  # any folder that AutoModel reads
        >>> vectors = embed(["the guest lives in the marsh .", "bimu keeps goats ."], backbone_path())
        >>> vectors.shape, (vectors**2).sum(axis=1).round(4).tolist()
        ((2, 128), [1.0, 1.0])
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}: give 1 or more texts.")
    if not texts:
        raise DataError("There are no texts: give at least one.")
    if device == AUTO:
        raise ConfigError("device='auto': an encoder needs one device: choose cpu, cuda, cuda:1 or mps.")
    check_unicode(texts)
    place = find_device(device)
    model, tokenizer = _loaded(Path(encoder))
    model = model.to(place)
    rows = tokenizer([*texts], truncation=True, max_length=_longest(model, tokenizer))["input_ids"]
    if empty := [number for number, row in enumerate(rows) if not row]:
        raise DataError(f"The text {texts[empty[0]]!r}, number {empty[0]}, has no tokens: leave it out.")
    vectors: dict[int, NDArray[np.float32]] = {}
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for start in range(0, len(order), batch_size):
        some = order[start : start + batch_size]
        ids, mask = (
            part.to(place) for part in pad_right([rows[i] for i in some], tokenizer.pad_token_id or 0)
        )
        with torch.no_grad():
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        sums = (hidden * mask.unsqueeze(-1)).sum(1)
        vectors |= zip(some, F.normalize(sums, dim=-1).cpu().numpy(), strict=True)
    return np.stack([vectors[number] for number in range(len(rows))])


def _loaded(folder: Path) -> tuple[PreTrainedModel, Tokenizer]:
    """Return the model of a folder, in evaluation mode and float32, and its tokenizer."""
    if not (folder / "config.json").is_file():
        raise BackboneError(
            f"{folder} has no config.json: give the folder of a Hugging Face encoder with config.json, "
            "model.safetensors and a tokenizer."
        )
    model, tokenizer, info = load_other(
        AutoModel, str(folder), f"the encoder {str(folder)!r}", dtype=torch.float32, use_safetensors=True
    )
    # A pooler is often missing from the file, and it is not used here.
    if missing := sorted(name for name in info["missing_keys"] if not name.startswith("pooler.")):
        raise BackboneError(
            f"The encoder {str(folder)!r} lacks the weight {missing[0]!r}, which would be random: give a "
            "complete folder."
        )
    if model.config.is_encoder_decoder:
        raise BackboneError(
            f"{str(folder)!r} is an encoder-decoder ({model.config.model_type}): give an encoder."
        )
    return model.eval(), tokenizer


def _longest(model: PreTrainedModel, tokenizer: Tokenizer) -> int:
    """Return the largest number of tokens that an encoder reads, also by sentence-transformers' setting."""
    limit = settings_in(Path(model.name_or_path) / "sentence_bert_config.json").get("max_seq_length")
    most = limit if isinstance(limit, int) and limit > 0 else LENGTHS
    return min(LENGTHS, positions(model) or LENGTHS, int(tokenizer.model_max_length), most)
