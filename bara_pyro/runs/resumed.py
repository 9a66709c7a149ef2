"""Resume a run with its own settings, even if its language model or its rows have moved."""

from pathlib import Path

from bara_pyro.data import is_file_name
from bara_pyro.errors import ConfigError
from bara_pyro.runs.config import MEMORY, RunConfig, for_rows, load_config
from bara_pyro.runs.folder import check_rows_there, stored_config
from bara_pyro.runs.manifest import ADAPTER, START
from bara_pyro.settings import DEFAULT_METHOD
from bara_pyro.types import Json

# Locations of model and data, which may have changed since the start; fingerprints check their content.
PLACES = {"backbone.name", "task.name", "task.data_dir", "task.test_file"}
# Settings that change no results.
NEUTRAL = {f"{section}.{key}" for section, keys in MEMORY.items() for key in keys}


def resumed(
    out: Path, file: Path | None, overrides: Json, assignments: list[str], *, with_rows: bool = False
) -> tuple[RunConfig, RunConfig]:
    """Return the settings that a run was started with, and the same with the present locations of its data.

    Settings that only cost memory or time may be changed; the new values are in both. If the rows are given
    in Python as well, set `with_rows`.

    Raises:
        ConfigError: a given setting differs from the run's.
        BaraError: the run's rows are missing.
    """
    started, stored = stored_config(out)
    method = overrides.get("method", started.method.name)
    name = method.get("name", DEFAULT_METHOD) if isinstance(method, dict) else method
    if name != started.method.name:  # another method has other settings
        raise ConfigError(
            f"{out} was started with the method {started.method.name!r}: leave --method out to resume it, or "
            "choose another --out."
        )
    typed = load_config(file, overrides, assignments, base=started)
    config = for_rows(typed, stored["num_data"])
    if typed.adapter.calibrated is None:
        config = config.updated("adapter", calibrated=None)  # as it was begun: too few rows could be held out
    others = [key for key in differences(started, config) if key not in PLACES | NEUTRAL]
    if config.task.name != started.task.name and not is_file_name(config.task.name):
        others.append("task.name")
    if others:
        raise other_settings(out, others)
    kept = next((out / name for name in (START, ADAPTER) if (out / name).exists()), None)
    if config.adapter.start is not None and kept is not None:
        config = config.updated("adapter", start=str(kept))
    if not with_rows:
        check_rows_there(out, config, stored)
    return started.with_memory(config), config


def check_same_settings(out: Path, config: RunConfig) -> None:
    """Raise a `ConfigError` if settings differ from a run's in a way that changes its results."""
    started, _ = stored_config(out)
    if started.hash != config.hash:
        raise other_settings(out, [key for key in differences(started, config) if key not in NEUTRAL])


def other_settings(out: Path, keys: list[str]) -> ConfigError:
    """Return the error for a run that was started with other settings."""
    return ConfigError(
        f"{out} was started with another {', '.join(keys)}: leave the settings out to resume it, or choose "
        "another --out."
    )


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """Return the dotted keys whose values differ."""
    a, b = _flat(old.dump()), _flat(new.dump())
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def _flat(data: Json, prefix: str = "") -> Json:
    out: Json = {}
    for key, value in data.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out
