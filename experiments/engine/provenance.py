"""Which code made a result: the commit, whether anything was changed since, and the versions it ran with."""

import hashlib
import subprocess
from functools import cache
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).parents[2]
# What decides a run's scores; results, pages and tests do not.
CODE = (
    *("bara_pyro", "models", "guides"),
    *("experiments/engine", "experiments/paper", "experiments/studies", "constraints.txt"),
)
BEFORE = "code that was not recorded"


class Code(TypedDict):
    """What is kept of the code with a result.

    Attributes:
        commit: of the repository; None outside one.
        dirty: whether the code differed from that commit.
        tree: SHA-256 of the names and contents of the library's modules, twelve digits.
        lock: SHA-256 of constraints.txt, twelve digits; None without it.
    """

    commit: str | None
    dirty: bool | None
    tree: str
    lock: str | None


@cache
def code_state(root: Path = ROOT) -> Code:
    """Return the state of the code as this process found it."""
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--", *CODE) if commit else None
    lock = root / "constraints.txt"
    return {
        "commit": commit,
        "dirty": None if changed is None else bool(changed),
        "tree": _tree(root),
        "lock": _digest(lock.read_bytes()) if lock.exists() else None,
    }


def same_code(one: Code | None, other: Code) -> bool:
    """Return whether two results were made by code that gives the same scores: equal files and versions."""
    return one is not None and (one["tree"], one["lock"]) == (other["tree"], other["lock"])


def in_words(code: Code | None) -> str:
    """Return the code of a result as it is printed."""
    if code is None:
        return BEFORE
    commit = f"commit {code['commit'][:12]}" if code["commit"] else f"no commit, tree {code['tree']}"
    return f"{commit}{' with changes' if code['dirty'] else ''}"


def _tree(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for name in CODE[:3] for path in (root / name).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git says, None where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],  # noqa: S607 - wherever it is installed
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
