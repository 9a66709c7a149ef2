"""What a server loads: files that are on this machine, and of weights safetensors alone."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from bara_pyro.errors import BackboneError
from bara_pyro.lm.loading import resolve


def local_backbone(name: str) -> str:
    """Return the folder of a language model without asking the network.

    Args:
        name: as of `bara_pyro.load_backbone`; a hub name stands for what was downloaded of it before.

    Raises:
        BackboneError: it is not on this machine, or its weights are not in safetensors.
    """
    folder = Path(resolve(name))
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError, OSError) as error:
            raise BackboneError(
                f"The language model {name!r} is not on this machine, and a server downloads nothing: "
                "download it before, or give its folder with --model."
            ) from error
    if not any(folder.glob("model*.safetensors")):
        raise BackboneError(
            f"{folder} has no model.safetensors, and a server reads weights of no other kind: save the "
            "language model as safetensors."
        )
    return str(folder)
