"""Exceptions of bara_pyro: one base class, and one subclass per kind of mistake.

Each message names the offending value and the fix in one sentence, which the command line prints without a
traceback.
"""

import signal
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from numbers import Integral
from typing import TypeGuard, get_args

TERMINATION = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end a process; SIGHUP, sent when the terminal closes, does not exist on Windows."""
MOST_CHARACTERS, MOST_PARTS = 2000, 8  # of a sentence, and of a list in one that is longer
NEAR = 0.7  # the share of letters in common from which on a name is taken for one that was meant


class BaraError(Exception):
    """Base class of this package's errors; each message says what is wrong and what to do.

    Examples:
        >>> import bara_pyro as bp
        >>> try:
        ...     prior = bp.make_prior("gamma", shape=2.0)
        ... except bp.BaraError as error:  # the base class; the message says what to do
        ...     print(error)
        Unknown hyperparameter of prior 'gamma': 'shape': choose one of concentration, rate.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(abbreviated(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(BaraError, ValueError):
    """A setting is unknown or out of range."""


class DataError(BaraError, ValueError):
    """A dataset, a row or a label cannot be used; the message names the file and the row."""


class BackboneError(BaraError, ValueError):
    """The language model cannot be used: a missing module or package, or an unsupported architecture."""


class CheckpointError(BaraError, ValueError):
    """A file of a run is missing, truncated, of another format or for another backbone."""


class TrainingError(BaraError, RuntimeError):
    """Training stopped because a loss or gradient is not finite; the last good state is kept."""


class ProcessLostError(BaraError, RuntimeError):
    """Another process of a distributed training run is gone or does not answer."""


class MissingKLError(BaraError, TypeError):
    """No analytic KL is registered for a posterior and its prior, and `sampled_kl` is off."""


class SandboxError(BaraError, RuntimeError):
    """This machine cannot isolate generated programs."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP stopped the command; the message says what is kept and how to resume.

    Attributes:
        code: exit code of the process, 128 plus the number of the signal.
    """

    code = 128 + signal.SIGINT

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.code = 128 + number


def unknown(kind: str, name: object, known: object) -> str:
    """Return an error message for an unknown name, with the most similar name and all known names.

    >>> unknown("prior", "gama", ["gamma", "exponential"])
    "Unknown prior 'gama' (gamma?): choose one of exponential, gamma."
    >>> unknown("prior", "none", ["gamma", "exponential"])
    "Unknown prior 'none': choose one of exponential, gamma."
    """
    names = sorted(map(str, known))  # type: ignore[call-overload]
    last = {full.rpartition(".")[2]: full for full in names}  # compare without the common section
    near = get_close_matches(str(name).rpartition(".")[2], last, n=1, cutoff=NEAR)
    hint = f" ({last[near[0]]}?)" if near else ""
    return f"Unknown {kind} {name!r}{hint}: choose one of {', '.join(names)}."


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a Python or NumPy integer; bools do not count."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_choice(kind: str, value: object, known: object) -> None:
    """Raise a `ConfigError` that names `kind` if a value is none of those of `known`, a `Literal`."""
    if value not in get_args(known):
        raise ConfigError(unknown(kind, value, get_args(known)))


def abbreviated(sentence: str) -> str:
    """Return a sentence of bounded length, with a long list in it shortened.

    >>> abbreviated(f"There is no column 'text' among {', '.join(f'v{i}' for i in range(10_000))}: name one.")
    "There is no column 'text' among v0, v1, v2, v3, v4, v5, v6, v7 and 9,991 more, v9999: name one."
    >>> len(abbreviated("x" * 100_000)) <= MOST_CHARACTERS
    True
    """
    if len(sentence) <= MOST_CHARACTERS:
        return sentence
    parts = sentence.split(", ")
    if len(parts) > MOST_PARTS:
        shown = parts[:MOST_PARTS]
        sentence = f"{', '.join(shown)} and {len(parts) - MOST_PARTS - 1:,} more, {parts[-1]}"
    cut = len(sentence) - MOST_CHARACTERS
    half = MOST_CHARACTERS // 2 - 4
    return sentence if cut <= 0 else f"{sentence[:half]} [..] {sentence[-half:]}"


def require_packages(what: str, packages: Iterable[str], extra: str) -> None:
    """Check that packages are installed.

    Args:
        what: feature that needs them, the subject of the message.
        packages: import names of the packages.
        extra: extra of bara-pyro that installs them.

    Raises:
        BackboneError: a package is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise BackboneError(f"{what} needs the package {package}: pip install 'bara-pyro[{extra}]'.")
