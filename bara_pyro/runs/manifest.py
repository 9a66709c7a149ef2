"""The manifest of a run's folder: the SHA-256 of every file, to detect damaged and foreign files."""

import hashlib
import json
import os
import shlex
from collections.abc import Container, Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath

from bara_pyro.atomic import is_claimed, write_json
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.untrusted.files import check_name, read_json
from bara_pyro.untrusted.schemas import SCHEMA, ManifestFile

MANIFEST = "manifest.json"
CONFIG, PEFT_CONFIG = "bara_config.json", "adapter_config.json"
ADAPTER, GUIDE = "adapter_model.safetensors", "guide.safetensors"
LOG, FITTED = "train_log.jsonl", "fitted.json"
# Split-half calibration: folder of a fit while it is trained, and the stored predictions. Stored
# runs have these names, which are older than the term.
SPLIT_HALF_FOLDER, SPLIT_HALF_FILE = ".rehearsal", "rehearsal.json"
CHECKPOINT = "checkpoint.safetensors"
START = "start.safetensors"  # A and B of the adapter that a run starts from, kept until its training ends
METRICS, PREDICTIONS = "metrics.json", "predictions.jsonl"
PROGRAMS, JUDGED = "programs.jsonl", "judged.jsonl"
HUB, CARD = "hub", "README.md"  # folder in a run with the upload; its model card
# Files that training writes; the checkpoint is removed at its end.
TRAINED = (CONFIG, PEFT_CONFIG, SPLIT_HALF_FILE, LOG, FITTED, ADAPTER, GUIDE)
SCORED = (PREDICTIONS, METRICS)


Listed = dict[str, str]
"""Name of a file -> its SHA-256."""


def read_manifest(folder: Path) -> Listed | None:
    """Return the files listed in a folder's manifest; None without a manifest.

    Raises:
        CheckpointError: the manifest is damaged, or lists a file outside its folder.
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
            f"{path} names a file outside its folder, {outside[0][:80]!r}: bara did not write this manifest, "
            "so do not use the folder."
        )
    return files


def _is_plain(name: str) -> bool:
    """Whether a name is that of a file directly in a folder, on any operating system."""
    names = {PurePosixPath(name).name, PureWindowsPath(name).name}
    return names == {name} and name not in ("", ".", "..") and "\0" not in name


def record_files(folder: Path, *names: str) -> None:
    """Update the manifest's entries of these files; entries of missing files are removed."""
    others = {name: digest for name, digest in (read_manifest(folder) or {}).items() if name not in names}
    write_manifest(folder, {**others, **listed_as_now(folder, names)})


def listed_as_now(folder: Path, names: Iterable[str]) -> Listed:
    """Return the SHA-256 of each of these files that exists."""
    return {name: sha256(folder / name) for name in names if (folder / name).is_file()}


def how_to_resume(folder: Path) -> str:
    """Return the command that resumes the run in a folder."""
    return f"`bara train --resume --out {shlex.quote(str(folder))}` (in Python: resume=True)"


def check_run(folder: Path) -> None:
    """Check that a folder holds a finished run whose files have not changed since.

    Raises:
        CheckpointError: there is no run, a process is training it, it was stopped before its end, or a file
            is missing, damaged, edited or of another run.
    """
    check_name(folder, CheckpointError)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file, not a run: give the folder of a run first.")
    if not folder.is_dir():
        raise CheckpointError(f"There is no folder {folder}: give the folder of a run.")
    verify_files(folder)
    if (folder / MANIFEST).exists():
        return
    if not is_run(folder):
        if below := run_below(folder):
            raise CheckpointError(f"{folder} is not a run but holds runs: give one of them, such as {below}.")
        raise CheckpointError(
            f"There is no run in {folder} ({CONFIG} is missing or was not written by bara_pyro): train one "
            "with `bara train --out FOLDER`, or give another folder."
        )
    way_out = how_to_resume(folder)
    if (folder / CHECKPOINT).exists() or not (folder / GUIDE).exists():
        if is_claimed(folder):
            raise CheckpointError(f"Another process is training in {folder}: wait until it has finished.")
        raise CheckpointError(f"The run in {folder} was stopped before its end: continue with {way_out}.")
    raise CheckpointError(
        f"{folder / MANIFEST} is missing, so damaged files cannot be detected: restore it from a copy, or "
        f"list the files as they are now with {way_out}."
    )


def verify_files(folder: Path, names: Iterable[str] | None = None) -> None:
    """Compare files of a folder (all by default) with its manifest; without a manifest, nothing is checked.

    Raises:
        CheckpointError: a file is missing, or has changed since it was written.
    """
    listed = read_manifest(folder) or {}
    for name in listed if names is None else [name for name in names if name in listed]:
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: {_way_out(folder, name)}.")
        if sha256(path) != listed[name]:
            raise CheckpointError(
                f"{path} is damaged, edited or from another run (its SHA-256 is not the one in {MANIFEST}): "
                f"{_way_out(folder, name)}."
            )


def _way_out(folder: Path, name: str) -> str:
    if name in SCORED:
        return f"write it again with {how_to_resume(folder)}"
    return "restore it from a copy, or train again"


def run_below(folder: Path, parts: Container[str] = ()) -> Path | None:
    """Return a run in a folder below this one, except in its `parts` and upload; None if there is none."""
    for place, _, names in os.walk(folder):
        inside = Path(place).relative_to(folder).parts
        if not inside or inside[0] in parts or CONFIG not in names:
            continue
        if is_run(Path(place)) and not is_upload(Path(place)):
            return Path(place)
    return None


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return {"config", "config_hash", "num_data"} <= _keys(folder / CONFIG)


def is_language_model(folder: Path) -> bool:
    """Whether a folder holds a language model in Hugging Face's format."""
    return bool({"architectures", "model_type"} & _keys(folder / "config.json"))


def _keys(file: Path) -> set[str]:
    """Return the keys of an object in JSON; none if the file cannot be read."""
    try:
        stored = read_json(file)
    except CheckpointError:
        return set()
    return set(stored) if isinstance(stored, dict) else set()


def check_kept(folder: Path) -> None:
    """Raise a `CheckpointError` if a run that is being written is no longer in its folder."""
    if not is_run(folder):
        raise CheckpointError(
            f"{folder} was removed or replaced while a run was being written there: train again, and do not "
            "change the folder meanwhile."
        )


def is_upload(folder: Path) -> bool:
    """Whether a folder is the upload that `bara push` wrote into a run, and not a run itself."""
    folder = folder.resolve()
    if folder.name != HUB or not is_run(folder.parent):
        return False
    try:
        return CARD in (read_manifest(folder) or {})
    except CheckpointError:
        return False


def check_not_uploaded(run: Path, out: Path) -> None:
    """Raise a `ConfigError` for an `out` in a run's upload: results, which name rows, would be uploaded."""
    if is_upload(run) and out.resolve().is_relative_to(run.resolve()):
        raise ConfigError(
            f"`bara push` uploads everything in {run}: give the run itself, {run.resolve().parent}, or "
            "another --out."
        )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits; a `CheckpointError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): check its permissions.") from error


def write_manifest(folder: Path, files: Listed) -> None:
    """Write the manifest of a folder."""
    files = dict(sorted(files.items()))
    write_json(folder / MANIFEST, {"schema": SCHEMA, "files": files, "digest": _digest_of(files)})


def _digest_of(files: Listed) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def check_free(out: Path, resume: bool) -> None:
    """Raise a `ConfigError` if `out` is a file, or holds weights, except those of a run to resume."""
    check_name(out, ConfigError)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file: give a folder as out (--out).")
    if not (out / CONFIG).exists():
        for path in (out / ADAPTER, out / GUIDE):
            if path.exists():
                raise ConfigError(f"{path} is not of a run: move it, or give another out (--out).")
    elif not resume:
        raise ConfigError(
            f"{out} already holds a run: give resume=True (--resume) to continue it, or another out (--out)."
        )
