"""Guides that know nothing of these programs: Pyro's own `AutoNormal`, `AutoDelta` and their kind.

Pyro takes the scale and the mask of a latent's terms from the guide's site. A guide of ours runs inside the
program and has the same; one that runs on its own has neither the weights of the KL (`beta`) nor the mask of
the padding, and would fit another objective without a word. A program that is replayed against a guide's
trace therefore gives the guide's sites its own.
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
"""What `AutoNormal` adds to a site's name for the draw on the real line that its value is made from."""


class Image(Delta):
    """The image of a draw under a bijection, whose log-density counts the Jacobian.

    `AutoNormal` writes it as a `Delta` with a `log_density`, which Pyro's KL of a `Delta` leaves out.
    """


@register_kl(Image, Independent)  # else as near to Pyro's rule for this
@register_kl(Image, td.Distribution)
def kl_image(q: Image, p: td.Distribution) -> Tensor:
    """Return the image's part of a one-draw estimate of the KL, in nats, of the batch shape."""
    return q.log_density - p.log_prob(q.v)


class OwnRows(Messenger):
    """Refuses a guide whose parameters are of rows by their place in a batch, which other rows take next.

    Of Pyro's guides none is amortised: a local latent has a parameter for each row and token. They are right
    where every batch is the whole data set, and always the same.

    Args:
        trace: the guide's, whose parameters it holds.
        batch: the rows that the program is run for.
    """

    def __init__(self, trace: Trace, batch: Batch) -> None:
        super().__init__()
        self.nodes = trace.nodes
        self.batch = batch

    def _pyro_post_sample(self, msg: Message) -> None:
        if site_is_subsample(msg):
            sizes = dict(zip(("data", "tokens"), self.batch.input_ids.shape, strict=True))
            if len(value_of(msg)) != sizes.get(str(msg["name"]), len(value_of(msg))):
                raise _by_place(str(msg["name"]))  # a guide's plate, of the rows that it met first
            return
        data = next((frame for frame in msg["cond_indep_stack"] if frame.name == "data"), None)
        if data is None or data.dim is None or msg["is_observed"]:
            return
        rows = value_of(msg).shape[data.dim - len(distribution_of(msg).event_shape) :]
        whole = torch.Size((data.full_size or data.size, *rows[1:]))
        for node in self.nodes.values():
            if node["type"] != "param":
                continue
            shape = value_of(node).shape  # before a plate has chosen rows of it
            by_place = shape == rows or (shape == whole and node["kwargs"].get("event_dim") is not None)
            if by_place and not (rows == whole and self._met(_parameter(node))):
                raise _by_place(str(msg["name"]))

    def _met(self, parameter: Tensor) -> bool:
        """Return whether the rows are those that a parameter met first."""
        first, own = ROWS.setdefault(parameter, self.batch), self.batch
        same = torch.equal(first.input_ids, own.input_ids)
        return same and torch.equal(first.attention_mask, own.attention_mask)


def _by_place(name: str) -> ConfigError:
    return ConfigError(
        f"The guide has parameters of {name!r} by row and token of one batch, and this is another: take "
        "latent='phi' or a guide of bp.guides, or give all num_data rows in every batch, always the same."
    )


def _parameter(node: Message) -> Tensor:
    """Return what lies in Pyro's store of a parameter that was read."""
    value = value_of(node)
    return cast(Tensor, getattr(value, "unconstrained", lambda: value)())


ROWS: MutableMapping[Tensor, Batch] = WeakIdKeyDictionary()
"""The rows that a guide's parameter by their places is of: those of the first batch that it met."""


class SharedWeights(OwnRows):
    """Gives the sites of a guide's trace scale and mask of the program that is replayed against it."""

    def __init__(self, trace: Trace, batch: Batch) -> None:
        super().__init__(trace, batch)
        auxiliary = [
            name
            for name, node in trace.nodes.items()
            if node["type"] == "sample" and (node["infer"] or {}).get("is_auxiliary")
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
                f"The guide draws several latents in one site ({self.joint[0]!r}), and {name!r} has a "
                "weight or a mask of its own: take a guide with a site for each (AutoNormal, AutoDelta)."
            )
        node = self.nodes[name]
        if "scale" not in node:  # values alone, as `infer_discrete` replays
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
        """Refuse a weight or a mask of the guide's own, which the program's would take the place of."""
        plain = prod((frame.full_size or frame.size) / frame.size for frame in node["cond_indep_stack"])
        around = takewhile(lambda handler: not isinstance(handler, ReplayMessenger), _PYRO_STACK)
        outside = any(isinstance(handler, ScaleMessenger | MaskMessenger) for handler in around)
        weights = {float(torch.as_tensor(weight)) for weight in (plain, msg["scale"])}
        scaled = not any(isclose(float(torch.as_tensor(node["scale"])), weight) for weight in weights)
        mask, own = node["mask"], msg["mask"]
        if isinstance(mask, Tensor) and isinstance(own, Tensor):
            masked = not torch.equal(mask, own)
        else:
            masked = mask is not None and mask is not own
        if (scaled or masked) and not outside:
            raise ConfigError(
                f"The guide gives {name!r} a weight or a mask of its own, and its KL has those of the "
                "program: leave out poutine.scale and poutine.mask around the guide."
            )

    @staticmethod
    def _weigh(node: Message, as_in: Message) -> None:
        node["scale"], node["mask"] = as_in["scale"], as_in["mask"]


def beside_foreign(batch: Batch) -> Messenger | None:
    """Return what a program runs under beside a guide that knows nothing of it; None where there is none.

    It is replayed against the guide's trace, or a guide messenger of Pyro's stands around it.
    """
    for handler in _PYRO_STACK:
        if isinstance(handler, ReplayMessenger) and handler.trace is not None:
            return SharedWeights(handler.trace, batch)
        if isinstance(handler, GuideMessenger) and not isinstance(handler, Module):
            return OwnRows(handler.trace, batch)
    return None
