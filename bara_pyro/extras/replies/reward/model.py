"""Load reward models: Hugging Face classifiers with one output and a trained head."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging

from bara_pyro.data.tokens import Tokenizer
from bara_pyro.errors import BackboneError, ConfigError, unknown
from bara_pyro.lm.inputs import positions
from bara_pyro.lm.loading import AUTO, DTYPES, load_other, resolve
from bara_pyro.runs.devices import find_device
from bara_pyro.runs.manifest import is_run
from bara_pyro.types import Json
from bara_pyro.untrusted.files import check_name

RECORD = "reward.json"  # of an earlier version, which trained and read rows in another format
HEAD = "score"
"""transformers' name of the head of a classifier made from a causal language model."""
LONGEST = 2048


@dataclass(frozen=True)
class RewardModel:
    """A classifier with one output, and its tokenizer.

    Attributes:
        model: the classifier, in evaluation mode.
        tokenizer: the tokenizer of its folder.
        name: the folder or hub name.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    name: str

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.device

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and reply together: `LONGEST`, or the model's own limit if lower."""
        return min(LONGEST, positions(self.model) or LONGEST)


def load_reward_model(name: str | Path, dtype: str = "float32", device: str = "cpu") -> RewardModel:
    """Load a reward model from a folder or the hub; code that comes with a model is never run.

    The head of a classifier made from a causal language model computes in float32, because scores in bfloat16
    have three digits and many replies would tie.

    Args:
        name: a local Hugging Face folder, or a hub name.
        dtype: type of the weights: "float32", "bfloat16" or "float16".
        device: device to load onto.

    Raises:
        BackboneError: the model cannot be read, lacks weights (which would be random), has more than one
            output or no padding token, or an earlier version trained it.
        ConfigError: `dtype` or `device` is unknown.

    Examples:
        >>> from transformers import AutoModelForSequenceClassification, AutoTokenizer
        >>> from bara_pyro.extras.replies.reward import load_reward_model
        >>> from bara_pyro.microworld import backbone_path
        >>> untrained = AutoModelForSequenceClassification.from_pretrained(backbone_path(), num_labels=1)
        >>> untrained.save_pretrained("judge")
        >>> _ = AutoTokenizer.from_pretrained(backbone_path()).save_pretrained("judge")
        >>> load_reward_model("judge").max_length
        256
    """
    check_name(Path(name), BackboneError)
    if (Path(name) / RECORD).is_file():
        raise BackboneError(
            f"{str(name)!r} has a {RECORD}, so an earlier version of bara trained it, in a format that is no "
            "longer read: train it again with TRL (docs/reward.md)."
        )
    model, tokenizer = _classifier(name, dtype, device)
    _give_padding(model, tokenizer, name)
    head = getattr(model, HEAD, None)
    if isinstance(head, nn.Linear):
        head.float()
        head.register_forward_pre_hook(lambda _, inputs: tuple(value.float() for value in inputs))
    return RewardModel(model, tokenizer, str(name))


def _classifier(name: str | Path, dtype: str, device: str) -> tuple[PreTrainedModel, Tokenizer]:
    """Load a classifier with one output, and its tokenizer; errors as for `load_reward_model`."""
    if dtype not in DTYPES:
        raise ConfigError(unknown("dtype", dtype, DTYPES))
    if device == AUTO:
        raise ConfigError("device='auto': a reward model needs one device: choose cpu, cuda, cuda:1 or mps.")
    place, path = find_device(device), resolve(name)
    if is_run(Path(path)):
        raise BackboneError(f"{str(name)!r} is a run, not a reward model: give a classifier with one output.")
    how: Json = {
        "num_labels": 1,
        "dtype": DTYPES[dtype],
        "ignore_mismatched_sizes": True,  # checked below, with a clearer message
    }
    what, way_out = f"{str(name)!r} as a classifier", ", or a hub name that can be reached"
    with _no_reports():
        model, tokenizer, info = load_other(AutoModelForSequenceClassification, path, what, way_out, **how)
    for key, stored, expected in info["mismatched_keys"]:
        why = f"it has {stored[0]} outputs" if tuple(expected)[:1] == (1,) else f"{key} has another shape"
        raise BackboneError(f"{str(name)!r} is not a reward model ({why}): give a model with one output.")
    if info["missing_keys"]:
        raise BackboneError(
            f"The file of {str(name)!r} lacks {min(info['missing_keys'])!r}, which would be random: give a "
            "trained reward model."
        )
    return model.to(place).eval(), tokenizer


@contextmanager
def _no_reports() -> Iterator[None]:
    """Silence transformers' report on missing weights, which are checked here."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _give_padding(model: PreTrainedModel, tokenizer: Tokenizer, name: str | Path) -> None:
    """Set the model's padding token, which it needs to find the end of a row in a batch."""
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    if config.pad_token_id is None:
        raise BackboneError(
            f"{str(name)!r} has no padding token, which marks the end of replies in a batch: set "
            "pad_token_id in its config.json to the token of its training."
        )
