"""Write requirements/*.txt, the pinned packages with their SHA-256, from pyproject.toml and constraints.txt.

`make lock` runs it. uv resolves once for every platform and every Python from 3.11 on; the answer is split
into the steps of an installation.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADER = (
    "# Written by `make lock` from pyproject.toml and constraints.txt: change those, then run it again.\n"
)
# torch's builds without CUDA are not on PyPI, so uv does not find their hashes: version -> SHA-256 of wheels.
CPU_BUILDS = {
    "2.13.0": (
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    ),  # Python 3.11, Linux, x86-64
}
BUILD = ("packaging", "setuptools", "wheel")  # first: source archives are built with these
CUDA = ("cuda-", "nvidia-", "triton")  # what only torch's CUDA build needs, some gigabytes


def resolved() -> dict[str, str]:
    """Return what uv resolves: name of a package -> its lines (one for each Python where versions differ)."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", "--no-annotate", "--no-header", "--constraints", "constraints.txt"]
    command += ["--extra", "dev", "pyproject.toml", "-"]
    build = "\n".join(BUILD)
    done = subprocess.run(command, cwd=ROOT, input=build, capture_output=True, text=True, check=True)
    found: dict[str, str] = {}
    for entry in re.split(r"^(?=\S)", done.stdout, flags=re.MULTILINE):
        if name := re.match(r"[a-z0-9.-]+", entry, flags=re.IGNORECASE):
            found[name[0]] = found.get(name[0], "") + entry
    return found


def main() -> None:
    """Write one file for each step of the installation."""
    found = resolved()
    version = found["torch"].split()[0].removeprefix("torch==")
    hashes = [f" \\\n    --hash=sha256:{sha256}" for sha256 in CPU_BUILDS.get(version, ())]
    cpu = f"torch=={version}+cpu{''.join(hashes)}\n"
    files: dict[str, list[str]] = {"build": [], "torch": [], "torch-cpu": [cpu], "cuda": [], "dev": []}
    for name, entry in found.items():
        which = "build" if name in BUILD else "torch" if name == "torch" else "dev"
        files["cuda" if name.startswith(CUDA) else which].append(entry)
    for stem, entries in files.items():
        (ROOT / "requirements" / f"{stem}.txt").write_text(HEADER + "".join(entries))


if __name__ == "__main__":
    main()
