"""Where a command may write: never over its input, nor over what bara did not write."""

import re
import tempfile
from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path

from bara_pyro.cli.typed import check_overwrite
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.runs.answers_file import KEYS, answers_in
from bara_pyro.runs.manifest import check_run, is_run, run_below
from bara_pyro.runs.ownership import foreign

LONGEST = 80  # characters of a name that nobody gave
SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")


def free_folder(name: str) -> Path:
    """Return a folder in `runs` that is not there yet, called after a task or a file."""
    stem = re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.")[:LONGEST] or "run"
    numbered = (f"{stem}-{number}" for number in count(2))
    return next(Path("runs") / one for one in chain([stem], numbered) if not (Path("runs") / one).exists())


def check_folder(
    out: Path,
    *,
    overwrite: bool | None,
    inputs: Sequence[Path] = (),
    choice: str = "give --out another folder",
    parts: Container[str] = (),
    resumes: bool = False,
) -> None:
    """Refuse a folder that a command must not write to, before anything slow.

    It may be absent or empty; what bara wrote there before is replaced where `overwrite` says so.

    Args:
        out: the folder.
        overwrite: what bara wrote there may be replaced; None for a command without such an option.
        inputs: folders that are read, and never written to.
        choice: what else can be done.
        parts: folders in it that may be runs, because they are its own; others' are never touched.
        resumes: the command can go on with a run.

    Raises:
        ConfigError: it is a file or an input, or holds an input, another run or anything else that is not its
            own; it needs `overwrite`, or cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file: {choice}.")
    for read in inputs:
        if read.resolve().is_relative_to(out.resolve()):
            held = "is" if out.resolve() == read.resolve() else "holds"
            raise ConfigError(f"{out} {held} what is read: {choice}.")
    if (run := run_below(out, parts)) is not None:
        raise ConfigError(f"{out} holds another run, {run}: {choice}.")
    stranger = foreign(out)
    if stranger is not None:
        raise ConfigError(f"{stranger} was not written by bara, or was changed since: move it, or {choice}.")
    if not overwrite and out.exists() and any(out.iterdir()):
        ways = ["--resume goes on with it"] if resumes and is_run(out) else []
        ways += [] if overwrite is None else ["--overwrite replaces it"]
        held = "a run" if is_run(out) else "results"
        raise ConfigError(f"{out} already holds {held}: {', or '.join([*ways, choice])}.")
    check_writable(out)


def check_file(
    out: Path,
    *,
    overwrite: bool,
    inputs: Sequence[Path] = (),
    option: str = "--out",
    ours: Callable[[Path], bool],
    resumes: bool = False,
) -> None:
    """Refuse a file that a command must not write, before anything slow.

    Args:
        out: the file.
        overwrite: a file that is there may be replaced.
        inputs: files and folders that are read, and never written to.
        option: that named it.
        ours: whether a file that is there was written by bara.
        resumes: the command can go on with such a file.

    Raises:
        ConfigError: it is a folder or an input, is there already, was not written by bara, or cannot be
            written.
    """
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: give {option} a file.")
    if out.exists() and not out.is_file():  # a pipe or a device, which cannot be looked into or replaced
        raise ConfigError(f"{out} is no regular file: give {option} the name of one.")
    for read in inputs:
        if out.resolve() == read.resolve() or (
            read.is_dir() and out.resolve().is_relative_to(read.resolve())
        ):
            raise ConfigError(f"{out} is what is read, or a part of it: give {option} another file.")
    if out.exists() and out.stat().st_size and not ours(out):  # an empty one holds nothing to lose
        raise ConfigError(f"{out} was not written by bara: give another {option}.")
    if out.exists() and not overwrite:
        ways = ["--resume to go on with it"] if resumes else []
        ways += ["--overwrite to replace it", f"another {option}"]
        raise ConfigError(f"{out} is there already: give {', or '.join(ways)}.")
    check_writable(out.parent)


def check_writable(folder: Path) -> None:
    """Refuse a folder in which no file can be made; nothing is left behind.

    Raises:
        ConfigError: it cannot be made, or written to.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(
            f"Cannot write to {folder} ({error.strerror or error}): choose another place."
        ) from error
    finally:
        for place in missing:
            if place.is_dir():
                place.rmdir()


def check_rows(
    run: Path,
    read: Sequence[Path],
    output: Path | None,
    *,
    overwrite: bool,
    keys: Collection[str] = KEYS,
) -> None:
    """Refuse what a command cannot ask a run or must not write, before anything slow.

    Args:
        run: folder of the run.
        read: files of rows.
        output: file for a line a row, if any.
        overwrite: a file that is there may be replaced.
        keys: what every row of an output of this command has.

    Raises:
        BaraError: there is no such file, or no run; the output must not be written, or has another ending.
    """
    check_overwrite(output)
    for file in read:
        if not file.is_file():
            raise DataError(f"There is no file {file}.")
    if output is not None:
        ours = partial(answers_in, keys=keys)
        check_file(output, overwrite=overwrite, inputs=[*read, run], option="--output", ours=ours)
        if output.suffix.lower() not in SUFFIXES:
            raise ConfigError(f"--output {output}: end the name in one of {', '.join(SUFFIXES)}.")
    check_run(run)
