"""Refuse, before anything slow, options that would change nothing and files that are not to be written."""

import re
import tempfile
from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from bara_pyro.cli import terminal
from bara_pyro.errors import ConfigError
from bara_pyro.runs.answers import FORMATS, KEYS, answers_in
from bara_pyro.runs.manifest import check_run, is_run, run_below
from bara_pyro.runs.ownership import foreign
from bara_pyro.untrusted.files import require_file

if TYPE_CHECKING:
    from bara_pyro.runs.system import System


def refuse(names: Collection[str], why: str) -> None:
    """Raise a `ConfigError` for an option (`top_p` for `--top-p`) that was typed and would change nothing.

    It names the first of them; `why`, such as "needs --page", follows its name in the message.
    """
    for name in names:
        if name in terminal.mode.typed:
            raise ConfigError(f"--{name.replace('_', '-')} {why}, or leave it out.")


def check_overwrite(*outputs: object) -> None:
    """Raise a `ConfigError` if --overwrite was typed, but all `outputs` are None."""
    if not any(outputs):
        refuse(["overwrite"], "replaces a file, but this command writes none: name a file to write")


def show_every_column(verbose: bool) -> None:
    """Let the table of scores show every column, if --verbose was typed, which --json refuses."""
    if terminal.mode.json:
        refuse(["verbose"], "adds columns to a table, which --json does not print: leave out --json")
    terminal.mode.verbose = verbose


def note_of_draws(system: "System", **given: object) -> None:
    """Remark on options of draws that change nothing, because nothing is drawn.

    `given` are parameters of the command with their values; 0 and None draw nothing.
    """
    from bara_pyro.core.guide import SiteGuide

    typed = [f"--{name.replace('_', '-')}" for name in given if given[name] and name in terminal.mode.typed]
    mean, guide = given.get("samples") == 0, system.guide
    overridden = type(guide).predictive is not SiteGuide.predictive
    varies = overridden or system.noisy_answers or (system.model.latents and guide.stochastic)
    if typed and (mean or not varies):
        method = system.config.method.name
        why = "--samples 0 draws nothing" if mean else f"{method} has no posterior to draw from"
        changes = "change" if len(typed) > 1 else "changes"
        terminal.remark(f"Note: {why}: {' and '.join(typed)} {changes} nothing.")


LONGEST = 80  # characters of a name that the user did not choose


def free_folder(name: str) -> Path:
    """Return a new folder in `runs`, named after a task or a file."""
    stem = re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.")[:LONGEST] or "run"
    numbered = (f"{stem}-{number}" for number in count(2))
    return next(Path("runs") / one for one in chain([stem], numbered) if not (Path("runs") / one).exists())


def check_folder(
    out: Path,
    *,
    overwrite: bool | None,
    inputs: Sequence[Path] = (),
    parts: Container[str] = (),
    resumes: bool = False,
) -> None:
    """Raise a `ConfigError` for a folder that a command must not write to, before anything slow.

    It may be absent or empty. With `overwrite`, earlier output of bara in it is replaced; a command without
    this option gives None. `inputs` are never written to; `parts` are subfolders of a run that are runs
    themselves.
    """
    choice = "choose another folder for --out"
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file: {choice}.")
    for read in inputs:
        if read.resolve().is_relative_to(out.resolve()):
            held = "is" if out.resolve() == read.resolve() else "holds"
            raise ConfigError(f"{out} {held} the input: {choice}.")
    if (run := run_below(out, parts)) is not None:
        raise ConfigError(f"{out} holds another run, {run}: {choice}.")
    stranger = foreign(out)
    if stranger is not None:
        raise ConfigError(f"{stranger} was not written by bara, or was changed since: move it, or {choice}.")
    if not overwrite and out.exists() and any(out.iterdir()):
        ways = ["--resume continues it"] if resumes and is_run(out) else []
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
    """Raise a `ConfigError` for a file that a command must not write, before anything slow.

    `option` named the file, and `ours` returns whether bara wrote an existing one. If the command can
    continue such a file (`resumes`), the message says so.
    """
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: choose a file name for {option}.")
    if out.exists() and not out.is_file():  # a pipe or a device, which cannot be read or replaced
        raise ConfigError(f"{out} is not a regular file: choose another file name for {option}.")
    for read in inputs:
        if out.resolve() == read.resolve() or (
            read.is_dir() and out.resolve().is_relative_to(read.resolve())
        ):
            raise ConfigError(f"{out} is the input or a part of it: choose another file name for {option}.")
    if out.exists() and out.stat().st_size and not ours(out):  # an empty one holds nothing to lose
        raise ConfigError(f"{out} was not written by bara: choose another file name for {option}.")
    if out.exists() and not overwrite:
        ways = ["--resume to continue it"] if resumes else []
        ways += ["--overwrite to replace it", f"another {option}"]
        raise ConfigError(f"{out} already exists: give {', or '.join(ways)}.")
    check_writable(out.parent)


def check_writable(folder: Path) -> None:
    """Raise a `ConfigError` for a folder in which no file can be written; nothing is left behind."""
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
    run: Path | None,
    read: Sequence[Path],
    output: Path | None,
    *,
    overwrite: bool,
    keys: Collection[str] = KEYS,
) -> None:
    """Raise a `BaraError` for a missing run or file, or an output that must not be written.

    This is before anything slow. A server has no folder of its run. `keys` are the columns that every output
    of this command has.
    """
    check_overwrite(output)
    for file in read:
        require_file(file)
    if output is not None:
        ours = partial(answers_in, keys=keys)
        inputs = [*read, *([run] if run else [])]
        check_file(output, overwrite=overwrite, inputs=inputs, option="--output", ours=ours)
        if output.suffix.lower() not in FORMATS:
            raise ConfigError(f"--output {output}: end the name in one of {', '.join(FORMATS)}.")
    if run is not None:
        check_run(run)
