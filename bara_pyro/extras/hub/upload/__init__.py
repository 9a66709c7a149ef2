"""Runs on the Hugging Face hub: the folder that is uploaded, and its model card."""

from bara_pyro.extras.hub.upload.push import prepare_upload, push

__all__ = ["prepare_upload", "push"]
