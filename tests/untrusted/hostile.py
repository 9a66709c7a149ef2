"""Runs that somebody spoilt on purpose: each field of each of their files, with the manifest made to fit."""

import hashlib
import json
import shutil
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

from bara_pyro.errors import BaraError
from bara_pyro.runs.config import parse_config
from bara_pyro.runs.manifest import ADAPTER, CHECKPOINT, CONFIG, GUIDE, LOG, METRICS, PEFT_CONFIG, PREDICTIONS
from bara_pyro.runs.store import _digest, read_tensors

Place = tuple[Any, ...]
"""Keys and numbers that lead to a value."""

JSONS = (CONFIG, PEFT_CONFIG, METRICS, "manifest.json")
LINES = (LOG, PREDICTIONS)
TENSORS = (ADAPTER, GUIDE)
GONE = "<gone>"  # in place of a value: its key is removed
DIGITS = "<digits>"  # in place of a value: a number of 5,000 digits
REGEX = r"(([a-z._0-9])+.?)+!"  # matches nothing, and tries for ages
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 0.5, 10**6, 10**9, 2**63, 10**18, -(10**18), 1e308, 1e-300),
    *(
        float("nan"),
        float("inf"),
        "",
        "x",
        "\0",
        "\ud800",
        "x" * 300,
        "a" * 200_000,
        REGEX,
        "../outside/secret",
    ),
    *([], {}, [[]], [1, "a", None], {"name": []}, ["x"] * 5_000, list(range(10_000)), {"a": {"b": {}}}),
    *(GONE, DIGITS, "all-linear", "cuda:77", "float16", "completion", ["lm_head"], "temperature"),
]


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Every value in a value of JSON, itself included; of long lists the first ones."""
    yield here
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*here, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:3]):
            yield from places(inner, (*here, number))


def changed(value: Any, place: Place, new: Any) -> Any:
    """The same with another value at a place."""
    if not place:
        return {} if new == GONE else new
    value = deepcopy(value)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    if isinstance(new, str) and new == GONE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return value


def text_of(value: Any) -> str:
    return json.dumps(value).replace(f'"{DIGITS}"', "9" * 5_000)


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_header(path: Path, header: Any, data: bytes) -> None:
    text = text_of(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def targets(run: Path, names: Iterable[str] = (*JSONS, *LINES, *TENSORS)) -> list[tuple[str, Place]]:
    """Every place of these files of a run: of lines in the first one, of tensors in the header."""
    found: list[tuple[str, Place]] = []
    for name in names:
        if name.endswith(".json"):
            found += [(name, place) for place in places(json.loads((run / name).read_text()))]
        elif name.endswith(".jsonl"):
            found += [(name, place) for place in places(json.loads((run / name).read_text().splitlines()[0]))]
        else:
            header = header_of(run / name)[0]
            found += [(name, place) for place in places(header)]
            inner = json.loads(header["__metadata__"]["bara_pyro"])
            found += [(name, ("bara_pyro", *place)) for place in places(inner)]
    return found


def spoil(run: Path, name: str, place: Place, new: Any) -> None:
    """Put a value at a place of a file."""
    path = run / name
    if name.endswith(".json"):
        path.write_text(text_of(changed(json.loads(path.read_text()), place, new)))
    elif name.endswith(".jsonl"):
        first, *others = path.read_text().splitlines(keepends=True)
        path.write_text(text_of(changed(json.loads(first), place, new)) + "\n" + "".join(others))
    else:
        header, data = header_of(path)
        if place[:1] == ("bara_pyro",):
            inner = json.loads(header["__metadata__"]["bara_pyro"])
            header["__metadata__"]["bara_pyro"] = text_of(changed(inner, place[1:], new))
        else:
            header = changed(header, place, new)
        write_header(path, header, data)


def rehash(run: Path) -> None:
    """Make the hash of the settings fit, in all files that have it."""
    stored = json.loads((run / CONFIG).read_text())
    stored["config_hash"] = parse_config(stored["config"]).hash
    (run / CONFIG).write_text(json.dumps(stored))
    for name in TENSORS:
        header, data = header_of(run / name)
        inner = json.loads(header["__metadata__"]["bara_pyro"]) | {"config_hash": stored["config_hash"]}
        header["__metadata__"]["bara_pyro"] = json.dumps(inner)
        write_header(run / name, header, data)


def spoilt_checkpoint(run: Path, out: Path, name: str, place: Place, new: Any) -> Path:
    """A copy of a run that was stopped, with a value at a place of a file; its hashes fit if they can."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(run, out)
    spoil(out, name, place, new)
    if name == CONFIG and place[:1] == ("config",):
        with suppress(BaraError, ValueError, KeyError, TypeError, RecursionError):
            stored = json.loads((out / CONFIG).read_text())
            key = parse_config(stored["config"]).hash
            spoil(out, CONFIG, ("config_hash",), key)
            spoil(out, CHECKPOINT, ("bara_pyro", "identity", "configuration"), key)
    if place != ("bara_pyro", "digest"):
        with suppress(BaraError):
            sign(out)
    return out


def sign(run: Path) -> None:
    """Make the digest of a run's checkpoint fit its content."""
    tensors, metadata = read_tensors(run / CHECKPOINT)
    metadata.pop("digest", None)
    spoil(run, CHECKPOINT, ("bara_pyro", "digest"), _digest(tensors, metadata))


def list_files(run: Path) -> None:
    """Write a manifest that fits the files as they are."""
    names = sorted(path.name for path in run.iterdir() if path.is_file() and path.name != "manifest.json")
    files = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in names}
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    (run / "manifest.json").write_text(json.dumps({"schema": 2, "files": files, "digest": digest}))


def spoilt(run: Path, out: Path, name: str, place: Place, new: Any) -> Path:
    """A copy of a run with a value at a place of a file; hashes fit wherever they can."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(run, out)
    spoil(out, name, place, new)
    if name == CONFIG and place[:1] == ("config",):
        with suppress(BaraError, ValueError, KeyError, TypeError, RecursionError):
            rehash(out)
    if name != "manifest.json":
        list_files(out)
    return out


class Opened:
    """The files that this process opens, while the block runs."""

    _hooked: ClassVar["list[Opened]"] = []

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __enter__(self) -> "Opened":
        if not hasattr(Opened, "_hook"):
            Opened._hook = sys.addaudithook(Opened._note) or True  # type: ignore[func-returns-value]
        Opened._hooked.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        Opened._hooked.remove(self)

    @staticmethod
    def _note(event: str, args: tuple[Any, ...]) -> None:
        if Opened._hooked and event in (
            "open",
            "os.mkdir",
            "os.remove",
            "os.rename",
            "os.rmdir",
            "os.listdir",
        ):
            Opened._hooked[-1].paths.append(str(args[0]))
