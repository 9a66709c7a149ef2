"""Check a Hugging Face folder for code, pipes and absurd sizes before transformers reads it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bara_pyro.errors import BackboneError
from bara_pyro.untrusted.files import bounded_json, check_regular, check_tensors, read_text, why

CONFIG, TOKENIZER_CONFIG, ADAPTER_CONFIG = "config.json", "tokenizer_config.json", "adapter_config.json"
# Names of settings that set the number of modules to build.
MODULES = re.compile(r"(layers?|blocks|experts|depths?|stages)$")
MOST_MODULES = 4096
MOST_DIGITS = 40


def check_model_folder(folder: Path) -> None:
    """Refuse an unsafe folder of a language model; a path that is not a folder is not checked.

    Raises:
        BackboneError: a file is not regular or is damaged, the model needs its own code, or it has more
            layers than is reasonable or than its weights.
    """
    if not folder.is_dir():
        return
    for path in (*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")):
        if not path.is_dir() and path.exists():
            _check_file(path, folder)
    if (folder / CONFIG).is_file() and (folder / ADAPTER_CONFIG).is_file():
        raise BackboneError(
            f"{str(folder)!r} contains an adapter ({ADAPTER_CONFIG}) beside the language model: merge or "
            "remove the adapter."
        )
    config, tensors = settings_in(folder / CONFIG), number_of_tensors(folder)
    check_config(config, str(folder), tensors)
    check_code(settings_in(folder / TOKENIZER_CONFIG), str(folder))


def _check_file(path: Path, folder: Path) -> None:
    try:
        check_regular(path)
    except OSError as error:
        raise BackboneError(
            f"Cannot read {path.name!r} in {str(folder)!r} ({why(error)}): give a folder of regular files."
        ) from error


def settings_in(path: Path) -> dict[str, Any]:
    """Return a language model's settings in a JSON file, {} without one; a `BackboneError` if damaged."""
    if not path.exists():
        return {}
    try:
        # Some architectures have infinite limits, and transformers writes 10^30 for an unlimited length.
        value = bounded_json(read_text(path), finite=False, digits=MOST_DIGITS)
    except (OSError, ValueError) as error:
        raise BackboneError(
            f"Cannot read {path} ({why(error)}): restore it, or download it again."
        ) from error
    if not isinstance(value, dict):
        raise BackboneError(f"{path} is not a JSON object: restore it, or download it again.")
    return value


def number_of_tensors(folder: Path) -> int | None:
    """Return the number of tensors in a folder's safetensors files; None without such files.

    A damaged file raises a `BackboneError`.
    """
    total, files = 0, sorted(folder.glob("*.safetensors"))
    for path in files:
        try:
            total += len(check_tensors(path))
        except (OSError, ValueError) as error:
            raise BackboneError(
                f"Cannot read {path} ({why(error)}): restore it, or download it again."
            ) from error
    return total if files else None


def check_config(config: Mapping[str, Any], name: str, tensors: int | None = None) -> None:
    """Refuse the settings of a language model that needs its own code or has too many modules.

    Args:
        config: content of its config.json.
        name: name of the language model, for messages.
        tensors: number of tensors in its weights, at least one per layer; None: unknown.

    Raises:
        BackboneError: the settings are refused.
    """
    check_code(config, name)
    for key, value in _entries(config):
        if key.endswith("attn_implementation") and any("/" in str(kernel) for kernel in _leaves(value)):
            raise BackboneError(
                f"{name!r} needs the attention kernel {str(value)[:60]!r}, which would be downloaded and "
                f"run: remove {key} from its {CONFIG}."
            )
        if not MODULES.search(key) or isinstance(value, bool) or not isinstance(value, int):
            continue
        layers = key.endswith(("layer", "layers")) and not key.startswith("max_")
        most = min(MOST_MODULES, tensors) if layers and tensors is not None else MOST_MODULES
        if value > most and not key.startswith("max_"):
            reason = f"its weights have {tensors} tensors" if most == tensors else f"the limit is {most}"
            raise BackboneError(
                f"{name!r} has {key} = {value} in its {CONFIG}, but {reason}: restore the original folder."
            )


def check_code(settings: Mapping[str, Any], name: str) -> None:
    """Raise a `BackboneError` for settings that would make transformers run code from a model's folder.

    Models that are now part of transformers are accepted: its classes of the same names are used instead.
    """
    classes = settings.get("auto_map")
    if classes in (None, {}):
        return
    import transformers

    for reference in _leaves(classes):
        kind = str(reference).rpartition("--")[2].rpartition(".")[2]
        if reference is not None and not (kind.isidentifier() and hasattr(transformers, kind)):
            raise BackboneError(
                f"{name!r} needs its own code (auto_map: {str(reference)[:60]!r}), which bara_pyro never "
                "runs: choose a language model whose architecture is part of transformers."
            )


def _entries(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys with their values, including those of nested sections."""
    left = [settings]
    while left:
        for key, value in left.pop().items():
            yield key, value
            if isinstance(value, Mapping):
                left.append(value)


def _leaves(value: Any) -> Iterator[Any]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        else:
            yield one
