"""How far replies are from each other under a sentence encoder that lies in a folder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedModel

from bara_pyro.data.tokens import Tokenizer
from bara_pyro.data.unicode import check_unicode
from bara_pyro.errors import BackboneError, ConfigError, DataError
from bara_pyro.extras.replies.reward.rows import pad_right
from bara_pyro.lm.inputs import positions
from bara_pyro.lm.loading import AUTO, UNREADABLE, load_tokenizer, quiet_transformers, reason_of
from bara_pyro.metrics import mean_cosine_distance
from bara_pyro.runs.system import find_device
from bara_pyro.untrusted.language_models import check_model_folder, settings_in

LENGTHS = 10**6  # tokenizers that know of no longest text say something larger


def encoder_distance(
    replies: Sequence[Sequence[str]], encoder: str | Path, *, batch_size: int = 32, device: str = "cpu"
) -> NDArray[np.float64]:
    """Return the mean of 1 - cosine over the pairs of replies to each prompt (0..2, `prompts`).

    Args:
        replies: of each prompt, as many as of every other, two or more.
        encoder: see `embed`.
        batch_size: see `embed`.
        device: see `embed`.

    Raises:
        DataError: there are no replies, fewer than two a prompt or not as many of each, or one has no tokens.
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
        told = f"from {counts[0]} to {counts[-1]}" if counts else "no prompts and no"
        raise DataError(f"There are {told} replies a prompt: give as many of every one.")
    vectors = embed([text for own in replies for text in own], encoder, batch_size=batch_size, device=device)
    return mean_cosine_distance(vectors.reshape(len(replies), counts[0], -1))


def embed(
    texts: Sequence[str], encoder: str | Path, *, batch_size: int = 32, device: str = "cpu"
) -> NDArray[np.float32]:
    """Return texts as vectors of length 1, `texts x dim`.

    Pooling: the mean of the last hidden states over all tokens of a text, those included that the tokenizer
    puts around it, padding left out; then divided by its length. That is what sentence-transformers computes
    of a folder whose modules are a transformer, mean pooling and normalisation; other modules of a folder (a
    pooling by the first token, a dense layer) are not looked at. A text that is longer than the encoder
    reads, or than its tokenizer says it may be, loses its end. Code that comes with a model is never run.

    Args:
        texts: the texts.
        encoder: a local Hugging Face folder, of anything that `AutoModel` reads but an encoder-decoder.
        batch_size: texts at a time, those of like length together; of no influence but for rounding.
        device: to compute on.

    Raises:
        BackboneError: the folder cannot be read, lacks weights, or is an encoder-decoder's.
        DataError: there are no texts, or one has no tokens or is not valid Unicode.
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
        raise ConfigError("device='auto': an encoder is put on one device: choose cpu, cuda, cuda:1 or mps.")
    check_unicode(texts)
    place = find_device(device)
    model, tokenizer = _loaded(Path(encoder))
    model = model.to(place)
    rows = tokenizer([*texts], truncation=True, max_length=_longest(model, tokenizer))["input_ids"]
    if empty := [number for number, row in enumerate(rows) if not row]:
        raise DataError(f"The text {texts[empty[0]]!r}, number {empty[0]}, has no tokens: leave it out.")
    found: dict[int, NDArray[np.float32]] = {}
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for start in range(0, len(order), batch_size):
        some = order[start : start + batch_size]
        ids, mask = (
            part.to(place) for part in pad_right([rows[i] for i in some], tokenizer.pad_token_id or 0)
        )
        with torch.no_grad():
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        sums = (hidden * mask.unsqueeze(-1)).sum(1)
        found |= zip(some, F.normalize(sums, dim=-1).cpu().numpy(), strict=True)
    return np.stack([found[number] for number in range(len(rows))])


def _loaded(folder: Path) -> tuple[PreTrainedModel, Tokenizer]:
    """Return the model of a folder, in evaluation mode and float32, and its tokenizer."""
    if not (folder / "config.json").is_file():
        raise BackboneError(f"{folder} is no folder of a Hugging Face encoder: it has no config.json.")
    how = {"dtype": torch.float32, "use_safetensors": True}
    check_model_folder(folder)
    try:
        with quiet_transformers():
            tokenizer = load_tokenizer(str(folder))
            model, info = AutoModel.from_pretrained(
                str(folder), output_loading_info=True, trust_remote_code=False, **how
            )
    except BackboneError:
        raise
    except UNREADABLE as error:
        raise BackboneError(
            f"Cannot load the encoder {str(folder)!r} ({reason_of(error)}): give a folder with config.json, "
            "model.safetensors and a tokenizer."
        ) from error
    # A pooler is often not in the file, and plays no part here.
    if missing := sorted(name for name in info["missing_keys"] if not name.startswith("pooler.")):
        raise BackboneError(
            f"The encoder {str(folder)!r} lacks the weight {missing[0]!r}, which would be random: give a "
            "folder that was saved whole."
        )
    if model.config.is_encoder_decoder:
        raise BackboneError(
            f"{str(folder)!r} is an encoder-decoder ({model.config.model_type}): give an encoder alone."
        )
    return model.eval(), tokenizer


def _longest(model: PreTrainedModel, tokenizer: Tokenizer) -> int:
    """Return the most tokens that an encoder reads; sentence-transformers keeps a number of its own."""
    said = settings_in(Path(model.name_or_path) / "sentence_bert_config.json").get("max_seq_length")
    most = said if isinstance(said, int) and said > 0 else LENGTHS
    return min(LENGTHS, positions(model) or LENGTHS, int(tokenizer.model_max_length), most)
