"""A Hugging Face folder, looked at before transformers reads it: code, pipes, and a million layers."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bara_pyro.errors import BackboneError
from bara_pyro.untrusted.files import bounded_json, check_regular, read_text, why
from bara_pyro.untrusted.tensors import check_tensors

CONFIG, TOKENIZER_CONFIG, ADAPTER_CONFIG = "config.json", "tokenizer_config.json", "adapter_config.json"
# What settings call the number of modules of a kind: these are built one by one.
MODULES = re.compile(r"(layers?|blocks|experts|depths?|stages)$")
MOST_MODULES = 4096
MOST_DIGITS = 40


def check_model_folder(folder: Path) -> None:
    """Refuse a folder of a language model that is not to be read; what is no folder is not looked at.

    Raises:
        BackboneError: a file is not regular or damaged, it wants code of its own to be run, or its numbers of
            layers are beyond reason or beyond its weights.
    """
    if not folder.is_dir():
        return
    for path in (*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")):
        if not path.is_dir() and path.exists():
            _check_file(path, folder)
    if (folder / CONFIG).is_file() and (folder / ADAPTER_CONFIG).is_file():
        raise BackboneError(
            f"{str(folder)!r} holds an adapter beside the language model ({ADAPTER_CONFIG}): merge it, or "
            "give the language model alone."
        )
    config, tensors = settings_in(folder / CONFIG), number_of_tensors(folder)
    check_config(config, str(folder), tensors)
    check_code(settings_in(folder / TOKENIZER_CONFIG), str(folder))


def _check_file(path: Path, folder: Path) -> None:
    try:
        check_regular(path)
    except OSError as error:
        raise BackboneError(
            f"{path.name!r} in {str(folder)!r} cannot be read ({why(error)}): give a folder of plain files."
        ) from error


def settings_in(path: Path) -> dict[str, Any]:
    """Return the settings in a JSON file of a language model; none where it is not there.

    Raises:
        BackboneError: it is damaged.
    """
    if not path.exists():
        return {}
    try:
        # Some architectures have infinite limits, and 10^30 is transformers' word for "no longest text".
        value = bounded_json(read_text(path), finite=False, digits=MOST_DIGITS)
    except (OSError, ValueError) as error:
        raise BackboneError(
            f"{path} cannot be read ({why(error)}): restore it, or download it anew."
        ) from error
    if not isinstance(value, dict):
        raise BackboneError(f"{path} is no JSON object: restore it, or download it anew.")
    return value


def number_of_tensors(folder: Path) -> int | None:
    """Return how many tensors the safetensors files of a folder hold; None where there are no such files.

    Raises:
        BackboneError: one is damaged.
    """
    total, files = 0, sorted(folder.glob("*.safetensors"))
    for path in files:
        try:
            total += len(check_tensors(path))
        except (OSError, ValueError) as error:
            raise BackboneError(
                f"{path} cannot be read ({why(error)}): restore it, or download it anew."
            ) from error
    return total if files else None


def check_config(config: Mapping[str, Any], name: str, tensors: int | None = None) -> None:
    """Refuse the settings of a language model that wants code to be run, or too many modules.

    Args:
        config: what its config.json says.
        name: of the language model, for the sentence.
        tensors: how many its weights have, of which every layer has one at the least; None: not known.

    Raises:
        BackboneError: they are refused.
    """
    check_code(config, name)
    for key, value in _entries(config):
        if key.endswith("attn_implementation") and any("/" in str(kernel) for kernel in _leaves(value)):
            raise BackboneError(
                f"{name!r} wants the attention kernel {str(value)[:60]!r}, code that would be downloaded and "
                f"run: remove {key} from its {CONFIG}."
            )
        if not MODULES.search(key) or isinstance(value, bool) or not isinstance(value, int):
            continue
        layers = key.endswith(("layer", "layers")) and not key.startswith("max_")
        most = min(MOST_MODULES, tensors) if layers and tensors is not None else MOST_MODULES
        if value > most and not key.startswith("max_"):
            told = f"its weights have {tensors} tensors" if most == tensors else f"at most {most} are read"
            raise BackboneError(
                f"{name!r} has {key} = {value} in its {CONFIG}, and {told}: give a folder as it was saved."
            )


def check_code(settings: Mapping[str, Any], name: str) -> None:
    """Refuse settings by which transformers would run code that comes with a language model.

    Some models say so that have since become a part of transformers: their classes have the same names there,
    which are taken. Code is never run.

    Raises:
        BackboneError: a class is none of transformers' own.
    """
    named = settings.get("auto_map")
    if named in (None, {}):
        return
    import transformers

    for reference in _leaves(named):
        own = str(reference).rpartition("--")[2].rpartition(".")[2]
        if reference is not None and not (own.isidentifier() and hasattr(transformers, own)):
            raise BackboneError(
                f"{name!r} brings code of its own (auto_map: {str(reference)[:60]!r}), which is never run: "
                "give a language model of an architecture that transformers has."
            )


def _entries(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys with their values, those of sections included."""
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
