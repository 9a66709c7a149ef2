"""Upload runs to the Hugging Face hub with a model card."""

from bara_pyro.extras.hub.upload.push import prepare_upload, push

__all__ = ["prepare_upload", "push"]
