"""Load a frozen language model and its tokenizer from a folder, the hub or the package."""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any, get_args

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging

from bara_pyro.errors import BackboneError, require_packages
from bara_pyro.lazy import uncollected
from bara_pyro.lm import quantized
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.verifying import verify_once
from bara_pyro.types import FloatType, WeightType
from bara_pyro.untrusted.files import there
from bara_pyro.untrusted.language_models import check_code, check_config, check_model_folder, settings_in

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(FloatType)}
AUTO = "auto"
"""Device name that spreads a model over the available GPUs, by accelerate."""
UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""Exceptions that transformers raises for invalid settings and files."""
VOCABULARIES = ("tokenizer.json", "tekken.json", "*vocab*", "*.model")
"""Names of the files of which a tokenizer has at least one."""
WANTED = (
    "give 'microworld', a folder with config.json, model.safetensors and a tokenizer, or a hub name that can "
    "be reached"
)


def load_backbone(
    name: str | Path,
    *,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    random_seed: int | None = None,
) -> Backbone:
    """Load a backbone and its tokenizer.

    Args:
        name: `"microworld"` (ships with the package), a local Hugging Face folder, or a hub name.
        dtype: dtype of the frozen weights: `"float32"`, `"bfloat16"` or `"float16"`. `"int8"` and `"int4"`
            quantise the linear layers and keep the rest in bfloat16 (`bara_pyro.lm.quantized`).
        device: device of the model; "auto" spreads it over the available GPUs (accelerate's device map).
        random_seed: if given, use the folder's configuration with random weights, for tests and benchmarks.

    Returns:
        The frozen language model in evaluation mode, with its tokenizer.

    Raises:
        BackboneError: the model cannot be read, its architecture is not supported
            (`bara_pyro.lm.verifying.verify`), a package is missing, or the GPUs have too little memory for
            "auto".

    Examples:
        >>> import bara_pyro as bp
        >>> backbone = bp.load_backbone("microworld")  # or a Hugging Face folder, or a hub name
        >>> backbone.lm.config.hidden_size, backbone.dtype, backbone.device
        (128, torch.float32, device(type='cpu'))
    """
    if dtype not in get_args(WeightType):
        raise BackboneError(f"Unknown dtype {dtype!r}: choose one of {', '.join(get_args(WeightType))}.")
    if random_seed is not None and dtype not in DTYPES:
        raise BackboneError(f"Random weights cannot be {dtype}: choose one of {', '.join(DTYPES)}.")
    place = "cpu" if device == AUTO else device
    how: dict[str, Any] = {"dtype": DTYPES[dtype]} if dtype in DTYPES else quantized.settings(dtype, place)
    if device == AUTO:
        require_packages("The device auto", ("accelerate",), "trainer")
        how["device_map"] = AUTO
    path = resolve(name)
    _check_folder(Path(path))
    try:
        with quiet_transformers(), uncollected():
            tokenizer = load_tokenizer(path)
            lm = _load_lm(path, how, random_seed)
    except BackboneError:
        raise
    except UNREADABLE as error:
        # A hub name and a missing folder look alike.
        exists = there(Path(path))
        why = reason_of(error) if exists else f"there is no such folder; the hub says: {reason_of(error)}"
        raise BackboneError(
            f"Cannot load the backbone {str(name)!r} ({why}): {WANTED}"
            + ("." if exists else "; without the hub, run `bara backbone get smollm2 --out runs/smollm2`.")
        ) from error
    if device != AUTO:
        lm = lm.to(device)
    elif any(parameter.is_meta for parameter in lm.parameters()):
        raise BackboneError(
            f"{str(name)!r} does not fit into the memory of this machine's GPUs, and offloading is not "
            "supported: load it with dtype bfloat16, int8 or int4, or use more GPUs."
        )
    backbone = Backbone(lm, tokenizer, str(name))
    if dtype not in DTYPES:
        quantized.check(lm, dtype)
        backbone.quantized = dtype
    verify_once(backbone)
    return backbone


def _check_folder(folder: Path) -> None:
    """Refuse a folder without a language model, and the folder of a run."""
    if not there(folder):
        return
    stored = settings_in(folder / "bara_config.json")
    if folder.is_dir() and not stored and not (folder / "config.json").exists():
        raise BackboneError(f"Cannot load the backbone {str(folder)!r} (it has no config.json): {WANTED}.")
    if {"config", "config_hash"} <= stored.keys():
        backbones = [part.get("backbone", {}) for part in (stored["config"],) if isinstance(part, dict)]
        names = [part.get("name") for part in backbones if isinstance(part, dict)]
        raise BackboneError(
            f"{str(folder)!r} is a run, not a language model: give the model that it was trained on"
            + (f", {str(names[0])[:200]!r}." if names else ".")
        )
    check_model_folder(folder)


def reason_of(error: Exception) -> str:
    """Return the first sentence of an error message, without its full stop."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return first.split(". ")[0].rstrip(".")


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or a hub name, in the class that its configuration names.

    Raises:
        BackboneError: there is no tokenizer, or it needs its own code.

    Examples:
        >>> from bara_pyro.lm.loading import load_tokenizer
        >>> from bara_pyro.microworld import backbone_path
        >>> tokenizer = load_tokenizer(str(backbone_path()))
        >>> tokenizer.tokenize("in winter bimu keeps goats .")
        ['in', 'winter', 'bimu', 'keeps', 'goats', '.']
    """
    # For some architectures (Qwen2 is one) transformers 5 uses the architecture's tokenizer class whatever
    # the folder says, and misreads other kinds of tokenizers. A folder that names the general class gets it.
    settings = get_tokenizer_config(path)
    check_code(settings, path)
    general = settings.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
    kind = PreTrainedTokenizerFast if general else AutoTokenizer
    folder = Path(path)
    without = there(folder) and folder.is_dir() and not any([*folder.glob(name)] for name in VOCABULARIES)
    lacking = BackboneError(
        f"{path!r} has no tokenizer: copy the model's tokenizer.json and tokenizer_config.json there, or "
        "write them with tokenizer.save_pretrained."
    )
    try:
        tokenizer = kind.from_pretrained(path, trust_remote_code=False)
    except UNREADABLE as error:
        if without:
            raise lacking from error
        raise
    # For GPT-2, Qwen2 and others transformers then makes an empty tokenizer; one of bytes needs no files.
    if without and len(tokenizer) <= len(tokenizer.added_tokens_decoder):
        raise lacking
    return tokenizer


def _load_lm(path: str, how: dict[str, Any], random_seed: int | None) -> PreTrainedModel:
    check_config(PreTrainedConfig.get_config_dict(path)[0], path)  # also for a model from the hub
    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    # Models that also read images are loaded completely; only their text tower is adapted.
    kind = (
        AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText
    )
    if random_seed is not None:
        with torch.random.fork_rng([]):
            torch.manual_seed(random_seed)
            return kind.from_config(config, dtype=how["dtype"], trust_remote_code=False)
    lm, info = kind.from_pretrained(path, output_loading_info=True, trust_remote_code=False, **how)
    if info["missing_keys"]:
        # transformers would continue with random values in their place.
        raise ValueError(f"its weights lack {min(info['missing_keys'])}")
    return lm


def load_other(
    kind: Any, path: str, what: str, way_out: str = "", **how: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    """Load a model that is no backbone by a class of transformers, with its tokenizer and the loading report.

    Code that comes with a model is never run. `what` names the model in the message, and `way_out` ends it.

    Raises:
        BackboneError: the model cannot be read.
    """
    check_model_folder(Path(path))
    try:
        with quiet_transformers():
            tokenizer = load_tokenizer(path)
            model, info = kind.from_pretrained(path, output_loading_info=True, trust_remote_code=False, **how)
    except BackboneError:
        raise
    except UNREADABLE as error:
        raise BackboneError(
            f"Cannot load {what} ({reason_of(error)}): give a folder with config.json, model.safetensors and "
            f"a tokenizer{way_out}."
        ) from error
    return model, tokenizer, info


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide transformers' progress bars and the hub's retry warnings while the block runs."""
    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    hub = getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(ERROR)
    try:
        yield
    finally:
        hub.setLevel(level)
        if before:
            logging.enable_progress_bar()


def resolve(name: str | Path) -> str:
    """Return the path or hub name of a language model; for "microworld" the folder in the package."""
    if str(name) == "microworld":
        from bara_pyro.microworld import backbone_path

        return str(backbone_path())
    return str(name)
