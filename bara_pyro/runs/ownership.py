"""Which files of a folder bara wrote, and so may replace or remove: by their SHA-256, not by their names.

A manifest is a file that anybody can send: what it lists is ours where the content is what was written. A
name by itself makes nothing ours: the files of a run that is being trained, which has no manifest yet, say
themselves what they are, and weights of which run.
"""

import logging
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.parts import is_part, part_folder, remove_parts
from bara_pyro.runs.answers_file import holds_replies, judged_in
from bara_pyro.runs.atomic import writing
from bara_pyro.runs.manifest import (
    ADAPTER,
    CHECKPOINT,
    CONFIG,
    FITTED,
    GUIDE,
    JUDGED,
    LOG,
    MANIFEST,
    OLD_CONFIG,
    PEFT_CONFIG,
    PROGRAMS,
    REHEARSAL,
    REHEARSED,
    SCORED,
    config_file,
    is_run,
    is_upload,
    listed_as_now,
    read_manifest,
    sha256,
    trained_files,
    write_manifest,
)
from bara_pyro.untrusted.files import first_object, read_json
from bara_pyro.untrusted.schemas import AdapterFile, FittedFile, RehearsedFile, RunFile, Stored

logger = logging.getLogger(__name__)
# Files that grow line by line, which no manifest can list meanwhile: the first line says whose they are.
GROWING = {PROGRAMS: holds_replies, JUDGED: judged_in}
# Files of a run that is being trained.
WEIGHTS = (ADAPTER, GUIDE, CHECKPOINT)
TEXTS: dict[str, type[Stored]] = {PEFT_CONFIG: AdapterFile, REHEARSED: RehearsedFile, FITTED: FittedFile}


def owned(folder: Path) -> set[str]:
    """Return the names of the files right in a folder that bara wrote and nobody changed since.

    No link is, and nothing in a folder whose manifest is damaged.
    """
    try:
        listed = read_manifest(folder)
    except CheckpointError:
        return set()
    known = (listed or {}).items()
    found = {name for name, digest in known if _is_file(folder / name) and sha256(folder / name) == digest}
    found |= {name for name, ours in GROWING.items() if _is_file(folder / name) and ours(folder / name)}
    begun = [CHECKPOINT, *([] if listed is not None else trained_files(folder))] if is_run(folder) else []
    found |= {name for name in begun if _is_file(folder / name) and _of_the_run(folder / name)}
    return found if listed is None else found | {MANIFEST}


def _of_the_run(path: Path) -> bool:
    """Whether a file of a run holds what training writes there; weights name the settings of this run."""
    try:
        if path.name in WEIGHTS:
            from bara_pyro.runs.store import read_metadata  # here, as torch takes seconds to import

            stored = read_metadata(path)
            key = stored.get("config_hash") or stored.get("identity", {}).get("configuration")
            return bool(key == read_json(config_file(path.parent))["config_hash"])
        if path.name == LOG:
            return not path.stat().st_size or "step" in (first_object(path) or {})
        read_json(path, TEXTS.get(path.name, RunFile))
    except CheckpointError:
        return False
    return True


def foreign(folder: Path, besides: Collection[str] = ()) -> Path | None:
    """Return what bara did not write in a folder or below, or somebody changed since; None: there is none.

    Files of the names `besides` are not looked at.
    """
    for top, folders, files in os.walk(folder):
        place = Path(top)
        folders[:] = sorted(name for name in folders if not is_part(name))
        links = [name for name in folders if (place / name).is_symlink()]
        ours = owned(place) if files else set()
        left = [name for name in files if name not in ours and name not in besides and not is_part(name)]
        if strangers := [*links, *sorted(left)]:
            return place / strangers[0]
    return None


def clear(folder: Path, besides: Collection[str] = ()) -> bool:
    """Remove what bara wrote in a folder and below, and folders that are empty then.

    Runs below it are left alone, and so is what is not `owned`, with a warning that names it unless it is one
    of `besides`. What was to be uploaded of a run goes with the run.

    Returns:
        Whether anything was removed.
    """
    if not folder.is_dir():
        return False
    removed = False
    for place in sorted(folder.iterdir()):
        if not place.is_dir() or place.is_symlink() or is_part(place.name):
            continue
        if (place.name == REHEARSAL or is_upload(place) or not is_run(place)) and clear(place):
            removed = True
            _remove_empty(place)
    # Last what says whose the others are: a process that is killed here must not make them nobody's.
    names = sorted(owned(folder), key=lambda name: (name == MANIFEST, name in (CONFIG, OLD_CONFIG)))
    for name in names:
        (folder / name).unlink(missing_ok=True)
    remove_parts(folder)
    files = {path.name for path in folder.iterdir() if not path.is_dir() and not is_part(path.name)}
    if left := sorted(files.difference(besides)):
        logger.warning("%s is left in %s: bara did not write it, or it was changed.", left[0], folder)
    return removed or bool(names)


def discard(folder: Path) -> None:
    """Remove what bara wrote in a folder, and the folder if it is empty then."""
    clear(folder)
    _remove_empty(folder)


def check_replaceable(folder: Path, names: Collection[str]) -> None:
    """Refuse to write files over what bara did not write, or somebody changed since.

    The scores of a run are written anew whatever became of them.

    Raises:
        ConfigError: there is such a file.
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
def adding(folder: Path) -> Iterator[Path]:
    """Give a place to write files to, which appear in a folder, listed, once all of them are written.

    Whatever stops this half-way leaves the folder as it was.

    Raises:
        ConfigError: one would replace what bara did not write.
        CheckpointError: they cannot be written.
    """
    made = not folder.exists()
    with ExitStack() as stack:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if made:
                stack.callback(_remove_empty, folder)
            remove_parts(folder, MANIFEST)
            place = stack.enter_context(part_folder(folder / MANIFEST))
        yield place
        with writing(folder):
            _move(place, folder)


def _move(place: Path, folder: Path) -> None:
    """List files in a folder and move them there; killed in between, one is missing, and none is wrong."""
    new = listed_as_now(place, os.listdir(place))
    check_replaceable(folder, new)
    before = read_manifest(folder) or {}
    for name, digest in new.items():
        if before.get(name) != digest:
            (folder / name).unlink(missing_ok=True)
    write_manifest(folder, {**before, **new})
    for name in new:
        os.replace(place / name, folder / name)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds something
        folder.rmdir()


def _is_file(path: Path) -> bool:
    """Whether this is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
