"""The settings of a stored run, and resuming with them even if its language model or its rows have moved."""

import sys
from pathlib import Path

from bara_pyro.data import ChatFrame, Columns, Task, is_file_name
from bara_pyro.errors import CheckpointError, ConfigError, DataError
from bara_pyro.methods import METHODS
from bara_pyro.runs.config import MEMORY, RunConfig, for_rows, load_config, parse_config
from bara_pyro.runs.manifest import ADAPTER, CONFIG, FITTED, GUIDE, START, is_run, verify_files
from bara_pyro.runs.store import read_tensors
from bara_pyro.settings import DEFAULT_METHOD
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import FittedFile, RunFile

# Locations of model and data, which may have changed since the start; fingerprints check their content.
PLACES = {"backbone.name", "task.name", "task.data_dir", "task.test_file"}
# Settings that change no results.
NEUTRAL = {f"{section}.{key}" for section, keys in MEMORY.items() for key in keys}


def stored_config(folder: Path) -> tuple[RunConfig, Json]:
    """Return the configuration of a run, and the content of its settings file.

    If the file is missing or foreign, or a plug-in or method is not installed, this raises a
    `CheckpointError`.
    """
    file = folder / CONFIG
    verify_files(folder, [file.name])
    if not is_run(folder):
        raise CheckpointError(f"{file} is not the configuration of a run: give the folder of a run.")
    stored = read_json(file, RunFile)
    if missing := [module for module in stored.get("plugins", []) if module not in sys.modules]:
        # Not imported automatically: a downloaded folder must not choose which code runs.
        raise CheckpointError(
            f"{folder} was trained with the plug-in {missing[0]!r}: add --plugin {missing[0]} (in Python: "
            "import it first)."
        )
    method = stored["config"].get("method")
    name = method.get("name", DEFAULT_METHOD) if isinstance(method, dict) else DEFAULT_METHOD
    if name not in METHODS:
        raise CheckpointError(
            f"{folder} was trained with the method {name!r}, which is not installed: install its "
            "package, or name its module with --plugin (in Python: import it first)."
        )
    config = parse_config(stored["config"], stored=True)
    if config.hash != stored["config_hash"]:
        raise CheckpointError(f"{file} was edited after the run began: restore it, or train again.")
    return config, stored


def stored_task(stored: Json) -> Task:
    """Return the task of a run without its rows, from its settings file."""
    columns, chat = stored["columns"], stored.get("chat")
    return Task(
        stored["task"],
        tuple(stored["labels"]),
        names=tuple(stored["names"]),
        columns=Columns(**columns) if columns else None,
        chat=ChatFrame(**chat) if chat else None,
    )


def stored_step(folder: Path) -> int:
    """Return after how many steps the parameters in a folder were saved, of any run; 0 if there are none."""
    return int(read_tensors(folder / GUIDE)[1].get("step", 0)) if (folder / GUIDE).exists() else 0


def stored_fitted(folder: Path) -> dict[str, float]:
    """Return the values in a folder that were fitted after training, by name; empty if there are none."""
    return read_json(folder / FITTED, FittedFile) if (folder / FITTED).exists() else {}


def stored_lr(folder: Path, config: RunConfig) -> float:
    """Return a run's peak learning rate: the one found by `find_lr`, or the configured one."""
    return stored_fitted(folder).get("calibrated_lr", config.train.peak_lr)


def check_rows_there(folder: Path, config: RunConfig, stored: Json) -> None:
    """Check that the rows of a run can be read again.

    Rows given in Python raise a `CheckpointError`, a file that does not exist a `DataError`.
    """
    name, test_file = config.task.name, config.task.test_file
    if stored["columns"] and not is_file_name(name):
        raise CheckpointError(
            f"{folder} was trained on rows given in Python (task {stored['task']!r}): give them again there "
            "with task=..., or give rows with --task FILE."
        )
    for file, option in ((name, "--task"), (test_file, "--test-file")):
        if file and is_file_name(str(file)) and not Path(file).is_file():
            raise DataError(
                f"The file {Path(file).absolute()}, on which {folder} was trained, does not exist: restore "
                f"it, work in the run's own directory, or give rows with {option} FILE."
            )


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
