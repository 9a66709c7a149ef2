"""Which code made a result: the commit, whether anything was changed since, and the versions it ran with."""

import hashlib
import subprocess
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

from bara_pyro.registry import PLUGINS

ROOT = Path(__file__).parents[2]
# What decides a run's scores; results, pages and tests do not.
CODE = (
    *("bara_pyro", "models", "guides"),
    *("experiments/engine", "experiments/paper", "experiments/studies", "constraints.txt"),
)
WEIGHTS = "bara_pyro/microworld/weights"  # of the language model that ships with the package
GROUPS = tuple(f"bara_pyro.{kind}" for kind in ("methods", "guides", "priors", "tasks", "reply_tasks"))
BEFORE = "before provenance was recorded"


class Code(TypedDict):
    """What is kept of the code with a result.

    Attributes:
        commit: of the repository; None outside one.
        dirty: whether the code differed from that commit.
        tree: SHA-256 of the names and contents of all that decides a score, twelve digits; with those of
            plug-ins, where there are any.
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
    code = (path for name in CODE[:3] for path in (root / name).rglob("*.py"))
    weights = (path for path in (root / WEIGHTS).rglob("*") if path.is_file())
    files = sorted([*code, *weights])
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    for name, path in sorted(_of_others().items()):
        digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _of_others() -> dict[str, Path]:
    """Return the files of methods, guides, priors and tasks of other packages, by module and place in it."""
    offered = (point.module for group in GROUPS for point in entry_points(group=group))
    found: dict[str, Path] = {}
    for module in {name.split(".")[0] for name in (*offered, *PLUGINS)}:
        spec = find_spec(module)
        if spec is not None and spec.origin is not None:
            own = Path(spec.origin)
            files = own.parent.rglob("*.py") if own.name == "__init__.py" else [own]
            found |= {f"{module}/{path.relative_to(own.parent)}": path for path in files}
    return found


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
