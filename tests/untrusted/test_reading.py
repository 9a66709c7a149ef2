"""What a folder that was sent may not do: hang, fill the memory, choose where files are written."""

import json
import os
import re
import struct
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from app_cases import save_backbone
from hostile import header_of, list_files, rehash, spoil, write_header
from safetensors.torch import load_file, save_file

import bara_pyro as bp
from bara_pyro.errors import BackboneError, BaraError, CheckpointError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.runs.manifest import ADAPTER, CONFIG, GUIDE
from bara_pyro.runs.store import read_tensors
from bara_pyro.untrusted.files import DEPTH, bounded_json, check_tensors, read_json, read_jsonl

QUESTION = [{"id": "one", "question": "is the fox red ?"}]


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return copytree(finished, tmp_path / "run")


@pytest.fixture(scope="module")
def backbone(place: Any) -> Backbone:
    return bp.load_backbone(place.backbone)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("9" * 5_000, "5,000 digits"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "1e999"),
        ("[" * (DEPTH + 1) + "]" * (DEPTH + 1), "nested"),
        ("[" * 100_000, "nested"),
        ("{", "line 1"),
    ],
)
def test_json_that_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=re.escape(said)):
        read_json(path)


def test_json_within_its_bounds() -> None:
    value = json.loads("[" * DEPTH + "]" * DEPTH)
    assert bounded_json(json.dumps(value)) == value
    assert bounded_json(json.dumps([2**64 - 1, -1.5e308, "[[" * 500])) == [2**64 - 1, -1.5e308, "[[" * 500]


def test_lines_end_with_a_line_feed_alone(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": "one\u2028two"}\n{"a": NaN}\n{"a": "half', encoding="utf-8")
    first, second = read_jsonl(path)
    assert first == {"a": "one\u2028two"}
    assert second["a"] != second["a"]  # a log may say that a norm was none


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nothing", "too long a name", "latin-1"])
def test_what_is_no_file_of_text(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "too long a name":
        path = tmp_path / ("x" * 300)
    elif kind == "latin-1":
        path.write_bytes('{"a": "é"}'.encode("latin-1"))
    with pytest.raises(CheckpointError, match="Cannot read"):
        read_json(path)
    with pytest.raises(CheckpointError, match="Cannot read"):
        read_tensors(path)


def test_a_link_to_a_file_is_one(tmp_path: Path) -> None:
    """Downloads of the hub are folders of links."""
    (tmp_path / "blob").write_text("[1]")
    (tmp_path / "file.json").symlink_to(tmp_path / "blob")
    assert read_json(tmp_path / "file.json") == [1]


def test_a_file_larger_than_its_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole, of which nothing is on the disk
    for read in (read_json, read_jsonl):
        with pytest.raises(CheckpointError, match="1,099,511,627,776 bytes"):
            read(path)


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        '{"__metadata__": []}',
        '{"__metadata__": {"a": 1}}',
        '{"x": []}',
        '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}',
        '{"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
        '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [' + "9" * 5_000 + ", 4]}}",
        "\xff",
    ],
)
def test_a_header_that_is_none(header: str, tmp_path: Path) -> None:
    path, data = tmp_path / "x.safetensors", header.encode("latin-1")
    path.write_bytes(struct.pack("<Q", len(data)) + data + bytes(4))
    with pytest.raises(ValueError, match=r"damaged|outside|object|digits|UTF-8"):
        check_tensors(path)
    with pytest.raises(CheckpointError):
        read_tensors(path)


def test_a_header_longer_than_its_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(ValueError, match="its header has"):
        check_tensors(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [ADAPTER, GUIDE])
def test_weights_that_are_not_finite(
    name: str, value: float, finished: Path, tmp_path: Path, backbone: Backbone
) -> None:
    run = copytree(finished, tmp_path / "run")
    tensors, header = load_file(run / name), header_of(run / name)[0]
    if not tensors:
        pytest.skip("this guide's parameters are all beside the adapter's")
    next(iter(tensors.values())).view(-1)[0] = value
    save_file(tensors, run / name, header["__metadata__"])
    list_files(run)
    with pytest.raises(CheckpointError, match="not finite"):
        bp.load_system(run, backbone=backbone, with_rows=False)


def test_weights_of_another_type(run: Path, backbone: Backbone) -> None:
    header = header_of(run / ADAPTER)[0]
    save_file(
        {k: v.half() for k, v in load_file(run / ADAPTER).items()}, run / ADAPTER, header["__metadata__"]
    )
    list_files(run)
    with pytest.raises(CheckpointError, match="float16"):
        bp.load_system(run, backbone=backbone, with_rows=False)


def test_answers_that_are_no_numbers_are_said(run: Path, backbone: Backbone) -> None:
    tensors, header = load_file(run / ADAPTER), header_of(run / ADAPTER)[0]
    save_file(
        {k: torch.full_like(v, 3e38) for k, v in tensors.items()}, run / ADAPTER, header["__metadata__"]
    )
    list_files(run)
    system = bp.load_system(run, backbone=backbone, with_rows=False)
    for samples in (0, 2):
        with pytest.raises(BaraError, match="NaN"):
            bp.predict(system, QUESTION, samples=samples)


def test_a_rank_beyond_the_files_is_refused_before_it_is_made(run: Path, backbone: Backbone) -> None:
    spoil(run, CONFIG, ("config", "adapter", "r"), 16_384)
    rehash(run)
    list_files(run)
    with pytest.raises(CheckpointError, match="rank 16384"):
        bp.load_system(run, backbone=backbone, with_rows=False)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("config",), [], "config"),
        (("num_data",), None, "num_data"),
        (("num_data",), 0, "num_data"),
        (("names",), 5, "names"),
        (("labels",), "yes", "labels"),
        (("rank_pattern",), {"x": "8"}, "rank_pattern"),
        (("plugins",), 5, "plugins"),
        (("columns",), {"text": 5}, "columns.text"),
    ],
)
def test_fields_of_another_type_are_named(
    where: tuple[str, ...], value: object, said: str, run: Path, backbone: Backbone
) -> None:
    spoil(run, CONFIG, where, value)
    list_files(run)
    with pytest.raises(CheckpointError, match=re.escape(f"({said}")):
        bp.load_system(run, backbone=backbone, with_rows=False)


LAYERS = {"num_hidden_layers": 10**6, "layer_types": None}


@pytest.mark.parametrize(
    "changes", [LAYERS, {"num_hidden_layers": 28}, {"text": {"n_layer": 5_000}}, {"num_experts": 10**6}]
)
def test_more_layers_than_weights_are_not_built(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = save_backbone(tmp_path / "lm")
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | changes))
    with pytest.raises(BackboneError, match=r"layer|experts"):
        bp.load_backbone(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_a_pipe_in_a_language_model_is_not_waited_for(name: str, tmp_path: Path) -> None:
    folder = save_backbone(tmp_path / "lm")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(BackboneError, match="regular"):
        bp.load_backbone(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["[]", "[" * 100_000, '{"a": ' + "9" * 5_000 + "}", "\xff"])
def test_settings_of_a_language_model_that_are_none(name: str, text: str, tmp_path: Path) -> None:
    folder = save_backbone(tmp_path / "lm")
    (folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(BackboneError, match=name):
        bp.load_backbone(folder)


SIZES = ("hidden_size", "vocab_size", "num_attention_heads", "head_dim", "intermediate_size")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("value", [0, 10**9, "a", None, 1.5])
@pytest.mark.parametrize("key", SIZES)
def test_sizes_that_no_language_model_has(key: str, value: object, tmp_path: Path) -> None:
    folder = save_backbone(tmp_path / "lm")
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | {key: value}))
    with pytest.raises(BackboneError):
        bp.load_backbone(folder)


def test_metadata_of_another_type(run: Path, backbone: Backbone) -> None:
    header, data = header_of(run / GUIDE)
    write_header(run / GUIDE, header | {"__metadata__": {"bara_pyro": "[]"}}, data)
    list_files(run)
    with pytest.raises(CheckpointError, match=re.escape(str(run / GUIDE))):
        bp.load_system(run, backbone=backbone, with_rows=False)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".jsonl", "a\0b"], ids=["long", "long file", "null"])
def test_a_name_that_no_file_can_have(name: str, place: Any, tmp_path: Path) -> None:
    rows, lm = str(place.rows), str(place.backbone)
    for ask in (
        lambda: bp.load_system(name),
        lambda: bp.load_backbone(name),
        lambda: bp.train(task=name, model=lm, out=tmp_path / "out"),
        lambda: bp.train(task=rows, model=lm, test_file=name, out=tmp_path / "out"),
        lambda: bp.train(task=rows, model=lm, steps=1, out=tmp_path / name),
        lambda: bp.train(task="boolq", model=lm, data_dir=name, out=tmp_path / "out"),
    ):
        with pytest.raises(BaraError):
            ask()
