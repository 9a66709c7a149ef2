"""The exceptions of bara_pyro: one base class, one subclass per kind of mistake.

Each message is one sentence that names the offending value and the fix, so that the command line can
print it as it is, without a traceback.
"""

import signal
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from typing import get_args

TERMINATION = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that ask a process to end; the second where its terminal is closed, which Windows does not tell."""
MOST_CHARACTERS, MOST_PARTS = 2000, 8  # of a sentence, and of a list in one that is longer
NEAR = 0.7  # the share of letters in common from which on a name is taken for one that was meant


class BaraError(Exception):
    """Base class: everything that a user can mend.

    Examples:
        >>> import bara_pyro as bp
        >>> try:
        ...     prior = bp.make_prior("gamma", shape=2.0)
        ... except bp.BaraError as error:  # whatever it is; the message says what to do
        ...     print(error)
        Unknown hyperparameter of prior 'gamma': 'shape': choose one of concentration, rate.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(abbreviated(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(BaraError, ValueError):
    """A setting is unknown or out of range."""


class DataError(BaraError, ValueError):
    """A dataset, a row or a label cannot be used; names the file and the row where there is one."""


class BackboneError(BaraError, ValueError):
    """The language model does not fit: no such module, wrong architecture."""


class CheckpointError(BaraError, ValueError):
    """A file of a run is missing, truncated, foreign or belongs to another backbone."""


class TrainingError(BaraError, RuntimeError):
    """Training had to stop: the loss is not finite. The last good state is kept."""


class ProcessLostError(BaraError, RuntimeError):
    """Another process of a training that several share is gone, or does not answer."""


class MissingKLError(BaraError, TypeError):
    """No analytic KL is registered for a pair of posterior and prior, and sampling it was not asked for."""


class SandboxError(BaraError, RuntimeError):
    """Programs that nobody has read cannot be isolated on this machine."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP ended what was running; the message says what is kept and how to go on.

    Attributes:
        code: exit code of the process, 128 and the number of the signal.
    """

    code = 128 + signal.SIGINT

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.code = 128 + number


def unknown(kind: str, name: object, known: object) -> str:
    """Return the sentence for an unknown name: what was asked for, what is spelt alike, and what there is.

    >>> unknown("prior", "gama", ["gamma", "exponential"])
    "Unknown prior 'gama' (gamma?): choose one of exponential, gamma."
    >>> unknown("prior", "none", ["gamma", "exponential"])
    "Unknown prior 'none': choose one of exponential, gamma."
    """
    names = sorted(map(str, known))  # type: ignore[call-overload]
    last = {full.rpartition(".")[2]: full for full in names}  # a section in common makes nothing alike
    near = get_close_matches(str(name).rpartition(".")[2], last, n=1, cutoff=NEAR)
    hint = f" ({last[near[0]]}?)" if near else ""
    return f"Unknown {kind} {name!r}{hint}: choose one of {', '.join(names)}."


def check_choice(kind: str, value: object, known: object) -> None:
    """Raise `ConfigError` for a value that is none of those of `known`, a `Literal`."""
    if value not in get_args(known):
        raise ConfigError(unknown(kind, value, get_args(known)))


def abbreviated(sentence: str) -> str:
    """Return a sentence without most of a long list in it, and of bounded length.

    >>> abbreviated(f"There is no column 'text' among {', '.join(f'v{i}' for i in range(10_000))}: name one.")
    "There is no column 'text' among v0, v1, v2, v3, v4, v5, v6, v7 and 9,991 more, v9999: name one."
    >>> len(abbreviated("x" * 100_000)) <= MOST_CHARACTERS
    True
    """
    if len(sentence) <= MOST_CHARACTERS:
        return sentence
    parts = sentence.split(", ")
    if len(parts) > MOST_PARTS:
        kept = parts[:MOST_PARTS]
        sentence = f"{', '.join(kept)} and {len(parts) - MOST_PARTS - 1:,} more, {parts[-1]}"
    cut = len(sentence) - MOST_CHARACTERS
    half = MOST_CHARACTERS // 2 - 4
    return sentence if cut <= 0 else f"{sentence[:half]} [..] {sentence[-half:]}"


def require_packages(what: str, packages: Iterable[str], extra: str) -> None:
    """Refuse to go on where a package is not installed.

    Args:
        what: what needs it, as the subject of a sentence.
        packages: names that are imported.
        extra: of this package, which brings them.

    Raises:
        BackboneError: one of them is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise BackboneError(f"{what} needs the package {package}: pip install 'bara-pyro[{extra}]'.")
