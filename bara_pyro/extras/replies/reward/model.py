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
from bara_pyro.runs.manifest import is_run
from bara_pyro.runs.system import find_device
from bara_pyro.types import Json
from bara_pyro.untrusted.files import check_name

RECORD = "reward.json"  # of an earlier version, which trained and read rows in another format
HEAD = "score"
"""transformers' name of the head of a classifier made from a causal language model."""
LONGEST = 2048
CHAT, ENDED = "chat", "ended"


@dataclass(frozen=True)
class RewardModel:
    """A classifier with one output, its tokenizer and its settings.

    Attributes:
        model: the classifier, in evaluation mode.
        tokenizer: the tokenizer of its folder.
        name: the folder or hub name.
        format: "chat" if prompt and reply go through the chat template; "ended" if the reply follows the
            prompt, with the end-of-text token behind it.
        max_length: most tokens of prompt and reply together.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    name: str
    format: str
    max_length: int

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.device


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
        >>> reward = load_reward_model("judge")
        >>> reward.format, reward.max_length
        ('ended', 256)
    """
    check_name(Path(name), BackboneError)
    if (Path(name) / RECORD).is_file():
        raise BackboneError(
            f"{str(name)!r} has a {RECORD}, so an earlier version of bara trained it, in a format that is no "
            "longer read: train it again with TRL (docs/reward.md)."
        )
    model, tokenizer = load_classifier(name, dtype, device)
    give_padding(model, tokenizer, name)
    float_head(model)
    return RewardModel(model, tokenizer, str(name), format_of(tokenizer), token_limit(model))


def format_of(tokenizer: Tokenizer) -> str:
    """Return the format that TRL's RewardTrainer trains on: "chat" with a chat template, else "ended"."""
    return CHAT if tokenizer.chat_template else ENDED


def token_limit(model: PreTrainedModel) -> int:
    """Return the default limit of a row in tokens: `LONGEST`, or the model's own limit if lower."""
    return min(LONGEST, positions(model) or LONGEST)


def load_classifier(name: str | Path, dtype: str, device: str) -> tuple[PreTrainedModel, Tokenizer]:
    """Load a classifier with one output, and its tokenizer.

    Raises:
        BackboneError: the model cannot be read, lacks weights, is a run, or has more than one output.
        ConfigError: `dtype` or `device` is unknown.
    """
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


def give_padding(model: PreTrainedModel, tokenizer: Tokenizer, name: str | Path) -> None:
    """Set the model's padding token, which it needs to find the end of a row in a batch.

    Without one in the configuration and the tokenizer, this raises a `BackboneError`.
    """
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    if config.pad_token_id is None:
        raise BackboneError(
            f"{str(name)!r} has no padding token, which marks the end of replies in a batch: set "
            "pad_token_id in its config.json to the token of its training."
        )


def float_head(model: PreTrainedModel) -> None:
    """Make the head of a classifier made from a causal language model compute in float32."""
    head = getattr(model, HEAD, None)
    if isinstance(head, nn.Linear):
        head.float()
        head.register_forward_pre_hook(lambda _, inputs: tuple(value.float() for value in inputs))
