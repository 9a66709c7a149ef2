"""Find the files of a folder that bara wrote and may replace or remove, by their content, not their names.

A manifest may come from anywhere, so a file that it lists counts as bara's only if its SHA-256 is right. A
run that is being trained has no manifest yet; its files are recognised by their content, and weights by the
run that they name.
"""

import logging
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bara_pyro.atomic import is_part, part_folder, remove_parts, writing
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.runs.answers import holds_replies, judged_in
from bara_pyro.runs.manifest import (
    ADAPTER,
    CHECKPOINT,
    CONFIG,
    FITTED,
    GUIDE,
    JUDGED,
    LOG,
    MANIFEST,
    PEFT_CONFIG,
    PROGRAMS,
    SCORED,
    SPLIT_HALF_FILE,
    SPLIT_HALF_FOLDER,
    START,
    TRAINED,
    is_run,
    is_upload,
    listed_as_now,
    read_manifest,
    sha256,
    write_manifest,
)
from bara_pyro.untrusted.files import first_object, read_json
from bara_pyro.untrusted.schemas import AdapterFile, FittedFile, RunFile, SplitHalfFile, Stored

logger = logging.getLogger(__name__)
# Files that grow line by line, which a manifest cannot list meanwhile: they are recognised by the first line.
GROWING = {PROGRAMS: holds_replies, JUDGED: judged_in}
# Files of a run that is being trained.
WEIGHTS = (ADAPTER, GUIDE, CHECKPOINT, START)
TEXTS: dict[str, type[Stored]] = {
    PEFT_CONFIG: AdapterFile,
    SPLIT_HALF_FILE: SplitHalfFile,
    FITTED: FittedFile,
}


def owned(folder: Path) -> set[str]:
    """Return the names of the files directly in a folder that bara wrote and that have not changed since.

    Links are never included, nor are any files of a folder whose manifest is damaged.
    """
    try:
        listed = read_manifest(folder)
    except CheckpointError:
        return set()
    known = (listed or {}).items()
    files = {name for name, digest in known if _is_file(folder / name) and sha256(folder / name) == digest}
    files |= {name for name, ours in GROWING.items() if _is_file(folder / name) and ours(folder / name)}
    begun = [CHECKPOINT, START, *(TRAINED if listed is None else ())] if is_run(folder) else []
    files |= {name for name in begun if _is_file(folder / name) and _of_the_run(folder / name)}
    return files if listed is None else files | {MANIFEST}


def _of_the_run(path: Path) -> bool:
    """Whether training wrote a file of a run; weights must name the configuration of this run."""
    try:
        if path.name in WEIGHTS:
            from bara_pyro.runs.store import read_metadata  # here, as torch takes seconds to import

            stored = read_metadata(path)
            key = stored.get("config_hash") or stored.get("identity", {}).get("configuration")
            return bool(key == read_json(path.parent / CONFIG)["config_hash"])
        if path.name == LOG:
            return not path.stat().st_size or "step" in (first_object(path) or {})
        read_json(path, TEXTS.get(path.name, RunFile))
    except CheckpointError:
        return False
    return True


def foreign(folder: Path) -> Path | None:
    """Return a file in or below a folder that bara did not write or that was changed since, or None."""
    for top, folders, files in os.walk(folder):
        place = Path(top)
        folders[:] = sorted(name for name in folders if not is_part(name))
        links = [name for name in folders if (place / name).is_symlink()]
        ours = owned(place) if files else set()
        left = [name for name in files if name not in ours and not is_part(name)]
        if strangers := [*links, *sorted(left)]:
            return place / strangers[0]
    return None


def clear(folder: Path) -> bool:
    """Remove the files that bara wrote in and below a folder, and folders that are then empty.

    Other runs below the folder are kept, and so are files that are not `owned`; a warning names one of these.
    The upload of a run is removed with the run.

    Returns:
        Whether anything was removed.
    """
    if not folder.is_dir():
        return False
    removed = False
    for place in sorted(folder.iterdir()):
        if not place.is_dir() or place.is_symlink() or is_part(place.name):
            continue
        if (place.name == SPLIT_HALF_FOLDER or is_upload(place) or not is_run(place)) and clear(place):
            removed = True
            _remove_empty(place)
    # Manifest and settings go last: if the process is killed here, the other files can still be recognised.
    names = sorted(owned(folder), key=lambda name: (name == MANIFEST, name == CONFIG))
    for name in names:
        (folder / name).unlink(missing_ok=True)
    remove_parts(folder)
    if left := sorted(path.name for path in folder.iterdir() if not path.is_dir() and not is_part(path.name)):
        logger.warning("%s was left in %s: bara did not write it, or it was changed.", left[0], folder)
    return removed or bool(names)


def discard(folder: Path) -> None:
    """Remove the files that bara wrote in a folder, and the folder if it is then empty."""
    clear(folder)
    _remove_empty(folder)


def check_replaceable(folder: Path, names: Collection[str]) -> None:
    """Raise a `ConfigError` for a file that bara did not write or that was changed since.

    The scores of a run may always be overwritten.
    """
    there = [name for name in names if (folder / name).exists() or (folder / name).is_symlink()]
    if not there:
        return
    ours = owned(folder) | (set(SCORED) if is_run(folder) else set())
    if strangers := sorted(set(there) - ours):
        raise ConfigError(
            f"{folder / strangers[0]} was not written by bara, or was changed since: move it, or give "
            "another folder."
        )


@contextmanager
def adding(folder: Path, *, replacing: bool = False) -> Iterator[Path]:
    """Yield a temporary folder whose files are moved into `folder`, and listed there, on success.

    On failure `folder` is unchanged. With `replacing`, other files that bara wrote in it are then removed.

    Raises:
        ConfigError: a file would replace one that bara did not write.
        CheckpointError: the files cannot be written.
    """
    new = not folder.exists()
    with ExitStack() as stack:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if new:
                stack.callback(_remove_empty, folder)
            place = stack.enter_context(part_folder(folder / MANIFEST))
        yield place
        with writing(folder):
            _move(place, folder, replacing)


def _move(place: Path, folder: Path, replacing: bool) -> None:
    """List files in a folder's manifest and move them there; if killed, files are missing but never wrong."""
    new = listed_as_now(place, os.listdir(place))
    check_replaceable(folder, new)
    before = read_manifest(folder) or {}
    gone = owned(folder) - {*new, MANIFEST} if replacing else set()
    for name in (*gone, *(name for name, digest in new.items() if before.get(name) != digest)):
        (folder / name).unlink(missing_ok=True)
    write_manifest(folder, {**{name: before[name] for name in before.keys() - gone}, **new})
    for name in new:
        os.replace(place / name, folder / name)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it is not empty
        folder.rmdir()


def _is_file(path: Path) -> bool:
    """Whether this is a regular file and not a link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
