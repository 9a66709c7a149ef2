"""Convert GGUF, llama.cpp's file format, to a Hugging Face folder.

transformers reads GGUF files and dequantises their weights, but cannot save the result because it treats the
model as quantised. Here the weights are copied into a plain model of the same configuration, which is saved.
"""

import io
import struct
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from bara_pyro.atomic import appearing
from bara_pyro.errors import BackboneError, ConfigError, require_packages, unknown
from bara_pyro.lm.loading import DTYPES, UNREADABLE, quiet_transformers, reason_of
from bara_pyro.untrusted.language_models import check_config

MAGIC = b"GGUF"
# For `require_packages`, whose message is clearer than that of transformers.
READER = ("Reading a GGUF file", ("gguf", "accelerate"), "gguf")


def convert_gguf(file: Path, out: Path, *, dtype: str = "bfloat16", card: str = "") -> int:
    """Write the language model and the tokenizer of a GGUF file as a Hugging Face folder.

    The folder appears whole or not at all.

    Args:
        file: GGUF file of an architecture that transformers supports.
        out: the folder to write; it must be empty or not exist.
        dtype: type of the written weights: "float32", "bfloat16" or "float16". bfloat16 is precise enough for
            quantised files.
        card: text of the folder's README.md; "" writes none.

    Returns:
        The number of parameters.

    Raises:
        ConfigError: `dtype` is unknown, or `out` is not empty.
        BackboneError: the file is missing, damaged, not GGUF or of an unknown architecture, or the package
            gguf or accelerate is not installed.
    """
    if dtype not in DTYPES:
        raise ConfigError(unknown("dtype", dtype, DTYPES))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists already: give another folder.")
    _check(file)
    # The progress bar for GGUF ignores the setting that disables the others.
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        try:
            read, tokenizer = _read(file)
        except BackboneError:
            raise
        except (*UNREADABLE, struct.error) as error:
            raise BackboneError(
                f"{file} cannot be read as GGUF ({reason_of(error)}): download it again."
            ) from error
        lm = _plain(read, DTYPES[dtype])
        with appearing(out) as folder:
            lm.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            if card:
                (folder / "README.md").write_text(card)
    return sum(p.numel() for p in lm.parameters())


def _check(file: Path) -> None:
    if not file.is_file():
        raise BackboneError(f"There is no file {file}: check the path.")
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise BackboneError(
                f"{file} is not a GGUF file, because it does not begin with {MAGIC.decode()}: give "
                "another file."
            )
    require_packages(*READER)


def _read(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the language model and tokenizer of a file, ignoring other files in its folder."""
    check_config(load_gguf_checkpoint(str(file))["config"], str(file))
    with TemporaryDirectory() as alone:
        (Path(alone) / file.name).symlink_to(file.resolve())
        tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file=file.name, trust_remote_code=False)
        read = AutoModelForCausalLM.from_pretrained(
            alone, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
        )
    return read, tokenizer


def _plain(read: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return the same model without its quantisation settings."""
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    settings.pop("_name_or_path", None)
    lm = AutoModelForCausalLM.from_config(type(read.config)(**settings), dtype=dtype, trust_remote_code=False)
    lm.load_state_dict(read.state_dict())
    lm.tie_weights()
    lm.generation_config = read.generation_config
    return lm
