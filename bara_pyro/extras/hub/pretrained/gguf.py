"""GGUF, the one-file format of llama.cpp, as an ordinary Hugging Face folder.

transformers reads such a file (weights that are quantised in it are dequantised) but does not write what it
read: it takes the model for a quantised one. Here the same weights are put into a plain model of the same
configuration, which is saved.
"""

import io
import struct
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from bara_pyro.errors import BackboneError, ConfigError, require_packages, unknown
from bara_pyro.lm.loading import DTYPES, UNREADABLE, quiet_transformers, reason_of
from bara_pyro.runs.atomic import appearing
from bara_pyro.untrusted.language_models import check_config

MAGIC = b"GGUF"
SUFFIX = ".gguf"
# What transformers reads such files with, for `require_packages`: it says less clearly what it lacks.
READER = ("Reading a GGUF file", ("gguf", "accelerate"), "gguf")


def convert_gguf(file: Path, out: Path, *, dtype: str = "bfloat16", card: str = "") -> int:
    """Write the language model and the tokenizer of a GGUF file as a Hugging Face folder.

    The folder appears whole or not at all.

    Args:
        file: of an architecture that transformers reads from GGUF.
        out: the folder; it must not exist, or be empty.
        dtype: "float32", "bfloat16" or "float16", of the weights written. A quantised file holds no more than
            bfloat16 keeps.
        card: text of the folder's README.md; none if "".

    Returns:
        The number of parameters.

    Raises:
        ConfigError: `dtype` is unknown, or `out` holds something.
        BackboneError: the file is missing, no GGUF, of an unknown architecture or damaged, or the package
            gguf or accelerate is not installed.
    """
    if dtype not in DTYPES:
        raise ConfigError(unknown("dtype", dtype, DTYPES))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already: give another folder.")
    _check(file)
    # Its bar for GGUF does not heed what switches the others off.
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        try:
            read, tokenizer = _read(file)
        except BackboneError:
            raise
        except (*UNREADABLE, struct.error) as error:
            raise BackboneError(f"{file} cannot be read as GGUF ({reason_of(error)}).") from error
        lm = _plain(read, DTYPES[dtype])
        with appearing(out) as folder:
            lm.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            if card:
                (folder / "README.md").write_text(card)
    return sum(p.numel() for p in lm.parameters())


def _check(file: Path) -> None:
    if not file.is_file():
        raise BackboneError(f"There is no file {file}.")
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise BackboneError(f"{file} is no GGUF file: it does not begin with {MAGIC.decode()}.")
    require_packages(*READER)


def _read(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the language model and the tokenizer of a file, whatever else lies in its folder."""
    check_config(load_gguf_checkpoint(str(file))["config"], str(file))
    with TemporaryDirectory() as alone:
        (Path(alone) / file.name).symlink_to(file.resolve())
        tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file=file.name, trust_remote_code=False)
        read = AutoModelForCausalLM.from_pretrained(
            alone, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
        )
    return read, tokenizer


def _plain(read: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return the same model without the marks of quantisation."""
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    settings.pop("_name_or_path", None)
    lm = AutoModelForCausalLM.from_config(type(read.config)(**settings), dtype=dtype, trust_remote_code=False)
    lm.load_state_dict(read.state_dict())
    lm.tie_weights()
    lm.generation_config = read.generation_config
    return lm
