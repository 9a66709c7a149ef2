"""Let a program run beside guides from outside this package, such as Pyro's `AutoNormal` and `AutoDelta`.

They run apart from the program. Pyro takes scale and mask of a latent's terms from the guide's site. Such a
guide has neither the KL weights (`beta`) nor the padding mask and would silently fit another objective, so a
program that is replayed against the guide's trace copies its own scales and masks to the guide's sites
(`beside_foreign`).
"""

from collections.abc import MutableMapping
from itertools import takewhile
from math import isclose, prod
from typing import cast

import torch
import torch.distributions as td
from pyro.distributions import Delta, Independent
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK, Message
from pyro.poutine.scale_messenger import ScaleMessenger
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import register_kl
from torch.utils.weak import WeakIdKeyDictionary

from bara_pyro.core.handlers import check_not_split
from bara_pyro.core.modules import Module, distribution_of, value_of
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError

AUXILIARY = "_unconstrained"
"""Suffix that `AutoNormal` adds to a site's name for its unconstrained draw."""


class Image(Delta):
    """A draw mapped by a bijection, with the Jacobian in its log-density.

    `AutoNormal` represents it as a `Delta` with a `log_density`, which Pyro's KL of a `Delta` ignores.
    """


@register_kl(Image, Independent)  # otherwise Pyro's rule for Independent would match equally well
@register_kl(Image, td.Distribution)
def kl_image(q: Image, p: td.Distribution) -> Tensor:
    """Return the image's term of a one-draw estimate of the KL, in nats, shape `batch_shape`."""
    return q.log_density - p.log_prob(q.v)


class OwnRows(Messenger):
    """Refuses a guide whose parameters belong to batch positions, which other rows occupy in other batches.

    Pyro's automatic guides are not amortised: a local latent has one parameter per row and token of the
    batch. They are correct only if every batch is the whole data set, in the same order.

    The trace is that of the guide, with its parameters; the batch holds the rows of the current run.
    """

    def __init__(self, trace: Trace, batch: Batch) -> None:
        super().__init__()
        self.nodes = trace.nodes
        self.batch = batch

    def _pyro_post_sample(self, msg: Message) -> None:
        if site_is_subsample(msg):
            sizes = dict(zip(("data", "tokens"), self.batch.input_ids.shape, strict=True))
            if len(value_of(msg)) != sizes.get(str(msg["name"]), len(value_of(msg))):
                raise _by_place(str(msg["name"]))  # the guide's plate has the size of its first batch
            return
        data = next((frame for frame in msg["cond_indep_stack"] if frame.name == "data"), None)
        if data is None or data.dim is None or msg["is_observed"]:
            return
        rows = value_of(msg).shape[data.dim - len(distribution_of(msg).event_shape) :]
        full_shape = torch.Size((data.full_size or data.size, *rows[1:]))
        for node in self.nodes.values():
            if node["type"] != "param":
                continue
            shape = value_of(node).shape  # before a plate subsamples it
            by_place = shape == rows or (shape == full_shape and node["kwargs"].get("event_dim") is not None)
            if by_place and not (rows == full_shape and self._met(_parameter(node))):
                raise _by_place(str(msg["name"]))

    def _met(self, parameter: Tensor) -> bool:
        """Return whether the rows are the first that this parameter was used for."""
        first, current = ROWS.setdefault(parameter, self.batch), self.batch
        same = torch.equal(first.input_ids, current.input_ids)
        return same and torch.equal(first.attention_mask, current.attention_mask)


def _by_place(name: str) -> ConfigError:
    return ConfigError(
        f"The guide has parameters of {name!r} for the rows of another batch: use latent='phi' or a guide of "
        "bp.guides, or pass all num_data rows in every batch, in one order."
    )


def _parameter(node: Message) -> Tensor:
    """Return the unconstrained tensor that Pyro's parameter store holds for a parameter."""
    value = value_of(node)
    return cast(Tensor, getattr(value, "unconstrained", lambda: value)())


ROWS: MutableMapping[Tensor, Batch] = WeakIdKeyDictionary()
"""Parameter with entries per row -> the first batch that it was used for."""


class SharedWeights(OwnRows):
    """Copies scale and mask of the replayed program to the sites of the guide's trace."""

    def __init__(self, trace: Trace, batch: Batch) -> None:
        super().__init__(trace, batch)
        auxiliary = [
            name
            for name, node in trace.nodes.items()
            if node["type"] == "sample" and not node["is_observed"]
            if (node["infer"] or {}).get("is_auxiliary")
        ]
        self.joint = [n for n in auxiliary if not n.endswith(AUXILIARY)]

    def _pyro_post_sample(self, msg: Message) -> None:
        name = msg["name"]
        super()._pyro_post_sample(msg)
        if name is None or msg["is_observed"] or site_is_subsample(msg) or name not in self.nodes:
            return
        check_not_split(msg)
        local = any(frame.name == "data" for frame in msg["cond_indep_stack"])
        if self.joint and (local or msg["mask"] is not None or msg["scale"] != 1):
            raise ConfigError(
                f"The guide draws several latents in one site ({self.joint[0]!r}), but {name!r} has its own "
                "weight or mask: use a guide with one site per latent (AutoNormal, AutoDelta)."
            )
        node = self.nodes[name]
        if "scale" not in node:  # a trace of values only, as in `infer_discrete`
            return
        self._check_unweighted(name, node, msg)
        self._weigh(node, msg)
        fn = node["fn"]
        if type(fn) is Delta:
            node["fn"] = Image(fn.v, log_density=fn.log_density, event_dim=fn.event_dim)
        if name + AUXILIARY in self.nodes:
            self._weigh(self.nodes[name + AUXILIARY], msg)

    @staticmethod
    def _check_unweighted(name: str, node: Message, msg: Message) -> None:
        """Refuse a guide's own weight or mask, which those of the program would overwrite."""
        plain = prod((frame.full_size or frame.size) / frame.size for frame in node["cond_indep_stack"])
        around = takewhile(lambda handler: not isinstance(handler, ReplayMessenger), _PYRO_STACK)
        outside = any(isinstance(handler, ScaleMessenger | MaskMessenger) for handler in around)
        weights = {float(torch.as_tensor(weight)) for weight in (plain, msg["scale"])}
        scaled = not any(isclose(float(torch.as_tensor(node["scale"])), weight) for weight in weights)
        mask, program_mask = node["mask"], msg["mask"]
        if isinstance(mask, Tensor) and isinstance(program_mask, Tensor):
            masked = not torch.equal(mask, program_mask)
        else:
            masked = mask is not None and mask is not program_mask
        if (scaled or masked) and not outside:
            raise ConfigError(
                f"The guide gives {name!r} its own weight or mask, but the KL uses those of the program: "
                "remove poutine.scale and poutine.mask around the guide."
            )

    @staticmethod
    def _weigh(node: Message, as_in: Message) -> None:
        node["scale"], node["mask"] = as_in["scale"], as_in["mask"]


def beside_foreign(batch: Batch) -> Messenger | None:
    """Return the handler that a program needs with a guide from outside this package; None without one.

    Such a guide is a trace that the program is replayed against, or one of Pyro's guide messengers.
    """
    for handler in _PYRO_STACK:
        if isinstance(handler, ReplayMessenger) and handler.trace is not None:
            return SharedWeights(handler.trace, batch)
        if isinstance(handler, GuideMessenger) and not isinstance(handler, Module):
            return OwnRows(handler.trace, batch)
    return None
