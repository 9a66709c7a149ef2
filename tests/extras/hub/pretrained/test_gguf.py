"""GGUF files as Hugging Face folders: the same logits as the model that was written into the file."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.extras.hub.pretrained import convert_gguf
from bara_pyro.lm.loading import load_backbone

IDS = torch.tensor([[0, 8, 3, 9, 10, 2, 7]])


@pytest.mark.parametrize("quantised", [False, True])
def test_the_folder_has_the_weights_of_the_file(make_gguf, tmp_path: Path, quantised: bool) -> None:
    path, lm = make_gguf(quantised=quantised)
    before = path.read_bytes()
    assert convert_gguf(path, tmp_path / "out", dtype="float32") == sum(p.numel() for p in lm.parameters())
    read = load_backbone(tmp_path / "out")
    with torch.no_grad():
        assert_close(read.lm(IDS).logits, lm(IDS).logits, rtol=1e-5, atol=1e-5)
    assert path.read_bytes() == before
    assert not [p for p in tmp_path.iterdir() if p.name not in ("out", "tiny.gguf")]


def test_quantisation_is_seen(make_gguf) -> None:
    """A guard: the two files of the test above hold different weights."""
    (_, exact), (_, coarse) = make_gguf(), make_gguf(quantised=True)
    with torch.no_grad():
        assert (exact(IDS).logits - coarse(IDS).logits).abs().max() > 1e-3


def test_the_tokenizer_comes_along(make_gguf, tmp_path: Path) -> None:
    path, _ = make_gguf()
    convert_gguf(path, tmp_path / "out")
    tokenizer = load_backbone(tmp_path / "out").tokenizer
    assert tokenizer("ab a b", add_special_tokens=False)["input_ids"] == [0, 1, 9, 10]
    assert tokenizer.decode([0, 1, 9, 10]) == "ab a b"
    assert load_backbone(tmp_path / "out", dtype="bfloat16").dtype == torch.bfloat16


def test_what_is_refused(make_gguf, tmp_path: Path) -> None:
    path, _ = make_gguf()
    with pytest.raises(ConfigError, match="Unknown dtype 'int3'"):
        convert_gguf(path, tmp_path / "out", dtype="int3")
    with pytest.raises(BackboneError, match="There is no file"):
        convert_gguf(tmp_path / "none.gguf", tmp_path / "out")
    other = tmp_path / "other.gguf"
    other.write_text("something else")
    with pytest.raises(BackboneError, match="not a GGUF file"):
        convert_gguf(other, tmp_path / "out")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(BackboneError, match="cannot be read as GGUF"):
        convert_gguf(cut, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    with pytest.raises(ConfigError, match="exists already"):
        convert_gguf(path, tmp_path / "full")
