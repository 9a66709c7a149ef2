"""Fitted methods on a tiny language model, and replies read again by `predict`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import CompletionLikelihood
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.replies import EncodedReply, reply_batch
from bara_pyro.extras.replies.generation import Prompt, Reply
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods import build, method_config

Pair = tuple[AdaptedLM, SiteGuide]
TARGETS = ["q_proj", "v_proj", "lm_head"]
PROMPTS = (
    Prompt((5, 7, 9), "short"),
    Prompt((3, 4, 5, 6, 7, 8, 2, 11, 12), "long"),
    Prompt((11, 12), "two"),
)


def adapted(method: str, backbone: Backbone, **settings: object) -> Pair:
    """Return a method with every parameter moved, so that adapters and draws matter."""
    options = {"r": 3, "target_modules": TARGETS, "likelihood": CompletionLikelihood()}
    model, guide = build(method_config({"name": method, **settings}), backbone, 4, options)  # type: ignore[arg-type]
    with torch.no_grad():
        for part in (model, guide):
            for value in part.parameters():
                value.add_(0.3 * torch.randn_like(value))
    return model, guide


def read_again(pair: Pair, prompt: Prompt, tokens: Sequence[int], samples: int, seed: int = 0) -> Tensor:
    """Return `log p(tokens | prompt)` under each draw, `max(S, 1)`, in one forward without a cache."""
    told = EncodedReply(prompt.token_ids, tuple(tokens), prompt.key)
    return predict(*pair, reply_batch([[told]]), samples=samples, seed=seed)[:, 0]


def words(replies: Sequence[Reply]) -> list[tuple[int, ...]]:
    return [reply.token_ids for reply in replies]
