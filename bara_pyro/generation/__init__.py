"""Replies with uncertainty: one draw of the posterior holds for a whole reply."""

from bara_pyro.generation.generate import Reply, generate
from bara_pyro.generation.prompts import Prompt, encode_prompts, load_prompts
from bara_pyro.generation.uncertainty import ReplyUncertainty, reply_uncertainty

__all__ = [
    "Prompt",
    "Reply",
    "ReplyUncertainty",
    "encode_prompts",
    "generate",
    "load_prompts",
    "reply_uncertainty",
]
