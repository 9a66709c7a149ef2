"""Write replies with uncertainty; each reply uses one posterior draw."""

from bara_pyro.extras.replies.generation.generate import Reply, generate
from bara_pyro.extras.replies.generation.prompts import Prompt, encode_prompts, load_prompts
from bara_pyro.extras.replies.generation.uncertainty import ReplyUncertainty, reply_uncertainty

__all__ = [
    "Prompt",
    "Reply",
    "ReplyUncertainty",
    "encode_prompts",
    "generate",
    "load_prompts",
    "reply_uncertainty",
]
