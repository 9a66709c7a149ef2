"""Find the language model to serve: local files only, weights in safetensors only."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from bara_pyro.errors import BackboneError
from bara_pyro.lm.loading import resolve


def local_backbone(name: str) -> str:
    """Return the folder of a language model without using the network.

    Args:
        name: a name that `bara_pyro.load_backbone` accepts; a hub name must have been downloaded before.

    Raises:
        BackboneError: the model is not on this machine, or its weights are not in safetensors.
    """
    folder = Path(resolve(name))
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError, OSError) as error:
            raise BackboneError(
                f"The language model {name!r} is not on this machine, and `bara serve` downloads nothing: "
                "download it first, or give its folder with --model."
            ) from error
    if not any(folder.glob("model*.safetensors")):
        raise BackboneError(
            f"{folder} has no model.safetensors, the only format of weights that `bara serve` reads: save "
            "the language model as safetensors."
        )
    return str(folder)
