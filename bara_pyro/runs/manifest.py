"""What was written to a folder: every file with its SHA-256, so that damage and foreign files are noticed."""

import hashlib
import json
import logging
import os
import shlex
from collections.abc import Container, Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath

from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.runs.atomic import write_json
from bara_pyro.runs.claim import is_claimed
from bara_pyro.untrusted.files import check_name, read_json
from bara_pyro.untrusted.schemas import SCHEMA, ManifestFile

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"
CONFIG, PEFT_CONFIG = "bara_config.json", "adapter_config.json"
OLD_CONFIG = "config.json"  # as older versions named it, and transformers a language model's
ADAPTER, GUIDE = "adapter_model.safetensors", "guide.safetensors"
LOG, FITTED = "train_log.jsonl", "fitted.json"
REHEARSAL, REHEARSED = ".rehearsal", "rehearsal.json"  # folder of one that goes on; what it said
CHECKPOINT = "checkpoint.safetensors"
METRICS, PREDICTIONS = "metrics.json", "predictions.jsonl"
PROGRAMS, JUDGED = "programs.jsonl", "judged.jsonl"
HUB, CARD = "hub", "README.md"  # folder in a run of what is uploaded; its model card
# What training writes; the checkpoint is gone once it is over.
TRAINED = (CONFIG, PEFT_CONFIG, REHEARSED, LOG, FITTED, ADAPTER, GUIDE)
SCORED = (PREDICTIONS, METRICS)


Listed = dict[str, str | None]
"""Name of a file -> its SHA-256; None where an older version was stopped while it wrote the file."""


def read_manifest(folder: Path) -> Listed | None:
    """Return the files listed in a folder; None where there is no manifest.

    Raises:
        CheckpointError: the manifest itself is damaged, or lists what is no plain name in its folder.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        stored = read_json(path, ManifestFile)
    except CheckpointError:
        stored = None
    if stored is None or stored["digest"] != _digest_of(stored["files"]):
        raise CheckpointError(f"{path} is damaged: restore it from a copy of the folder.")
    files: Listed = stored["files"]
    if outside := [name for name in files if not _is_plain(name)]:
        raise CheckpointError(
            f"{path} names a file outside of its folder, {outside[0][:80]!r}: bara writes no such manifest, "
            "do not use the folder."
        )
    return files


def _is_plain(name: str) -> bool:
    """Whether a name is one of a file right in a folder, on any system."""
    own = {PurePosixPath(name).name, PureWindowsPath(name).name}
    return own == {name} and name not in ("", ".", "..") and "\0" not in name


def record_files(folder: Path, *names: str) -> None:
    """List files of a folder as they are now; those that are not there are listed no more."""
    others = {name: digest for name, digest in (read_manifest(folder) or {}).items() if name not in names}
    write_manifest(folder, {**others, **listed_as_now(folder, names)})


def listed_as_now(folder: Path, names: Iterable[str]) -> Listed:
    """Return the SHA-256 of those of these files that are there."""
    return {name: sha256(folder / name) for name in names if (folder / name).is_file()}


def how_to_resume(folder: Path) -> str:
    """Return what goes on with the run in a folder, as a user would type it."""
    return f"`bara train --resume --out {shlex.quote(str(folder))}` (in Python: resume=True)"


def check_run(folder: Path) -> None:
    """Check that a folder holds a finished run, none of whose files has changed since; a quick look.

    Raises:
        CheckpointError: there is no run, a process trains it, it was stopped half-way, or a file is missing,
            damaged, edited or of another run.
    """
    check_name(folder, CheckpointError)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file, not the folder of a run: give the folder of a run first.")
    if not folder.is_dir():
        raise CheckpointError(f"There is no folder {folder}: give the folder of a run.")
    verify_files(folder)
    if (folder / MANIFEST).exists():
        return
    if not is_run(folder):
        if below := run_below(folder):
            raise CheckpointError(f"{folder} is no run but holds some: give one of them, such as {below}.")
        raise CheckpointError(
            f"There is no run in {folder}, whose {CONFIG} is missing or was not written by bara_pyro: train "
            "one with `bara train --out FOLDER`, or give another folder."
        )
    way_out = how_to_resume(folder)
    declared = read_json(config_file(folder)).get("manifest") == MANIFEST
    if (folder / CHECKPOINT).exists() or (declared and not (folder / GUIDE).exists()):
        if is_claimed(folder):
            raise CheckpointError(f"Another process is training in {folder}: wait until it has finished.")
        raise CheckpointError(f"The run in {folder} was stopped half-way: {way_out} goes on with it.")
    if declared:
        raise CheckpointError(
            f"{folder / MANIFEST} is missing, so that damage to other files would not be noticed: restore "
            f"it from a copy, or {way_out} lists the files as they are now."
        )
    logger.warning("%s was written by an older version, without %s: damage is not noticed.", folder, MANIFEST)


def verify_files(folder: Path, names: Iterable[str] | None = None) -> None:
    """Compare files of a folder (all by default) with what its manifest lists; without one nothing is known.

    Raises:
        CheckpointError: a file is missing, or is not the one that was written.
    """
    listed = read_manifest(folder) or {}
    for name in listed if names is None else [name for name in names if name in listed]:
        if listed[name] is None:
            continue
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: {_way_out(folder, name)}.")
        if sha256(path) != listed[name]:
            raise CheckpointError(
                f"{path} is damaged, edited or of another run (its SHA-256 is not the one in {MANIFEST}): "
                f"{_way_out(folder, name)}."
            )


def _way_out(folder: Path, name: str) -> str:
    if name in SCORED:
        return f"{how_to_resume(folder)} writes it anew"
    return "restore it from a copy, or train again"


def run_below(folder: Path, parts: Container[str] = ()) -> Path | None:
    """Return a run in a folder below this one, but for its own `parts` and upload; None: there is none."""
    for place, _, names in os.walk(folder):
        inside = Path(place).relative_to(folder).parts
        if not inside or inside[0] in parts or not {CONFIG, OLD_CONFIG} & set(names):
            continue
        if is_run(Path(place)) and not is_upload(Path(place)):
            return Path(place)
    return None


def config_file(folder: Path) -> Path:
    """Return the file of a run's settings, which older versions named otherwise."""
    new, old = folder / CONFIG, folder / OLD_CONFIG
    return old if old.exists() and not new.exists() else new


def trained_files(folder: Path) -> list[str]:
    """Return the names of the files that training writes to a folder, or wrote as an older version did."""
    return [config_file(folder).name, *(name for name in TRAINED if name != CONFIG)]


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    try:
        stored = read_json(config_file(folder))
    except CheckpointError:
        return False
    return isinstance(stored, dict) and {"config", "config_hash", "num_data"} <= stored.keys()


def check_kept(folder: Path) -> None:
    """Raise a `CheckpointError` where a run that is being written is no longer in its folder."""
    if not is_run(folder):
        raise CheckpointError(
            f"{folder} was removed or replaced while a run was being written there: train again, and leave "
            "the folder alone meanwhile."
        )


def is_language_model(folder: Path) -> bool:
    """Whether a folder holds a language model as Hugging Face writes it."""
    try:
        stored = read_json(folder / "config.json")
    except CheckpointError:
        return False
    return isinstance(stored, dict) and bool({"architectures", "model_type"} & stored.keys())


def is_upload(folder: Path) -> bool:
    """Whether a folder is what `bara push` wrote in a run: a part of that run, not a run of its own."""
    folder = folder.resolve()
    if folder.name != HUB or not is_run(folder.parent):
        return False
    try:
        return CARD in (read_manifest(folder) or {})
    except CheckpointError:
        return False


def check_not_uploaded(run: Path, out: Path) -> None:
    """Refuse a place for results in what is uploaded of a run: they name its rows.

    Raises:
        ConfigError: it is one.
    """
    if is_upload(run) and out.resolve().is_relative_to(run.resolve()):
        raise ConfigError(
            f"{run} is what `bara push` uploads, with all that is written there: give the run itself, "
            f"{run.resolve().parent}, or an --out elsewhere."
        )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits; a `CheckpointError` where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): give yourself the right to."
        ) from error


def write_manifest(folder: Path, files: Listed) -> None:
    """Write what a folder holds."""
    files = dict(sorted(files.items()))
    write_json(folder / MANIFEST, {"schema": SCHEMA, "files": files, "digest": _digest_of(files)})


def _digest_of(files: Listed) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
