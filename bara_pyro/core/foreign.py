"""Guides that know nothing of these programs: Pyro's own `AutoNormal`, `AutoDelta` and their kind.

Pyro takes the scale and the mask of a latent's terms from the guide's site. A guide of ours runs inside the
program and has the same; one that runs on its own has neither the weights of the KL (`beta`) nor the mask of
the padding, and would fit another objective without a word. A program that is replayed against a guide's
trace therefore gives the guide's sites its own.
"""

import torch.distributions as td
from pyro.distributions import Delta, Independent
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK, Message
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import register_kl

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


class SharedWeights(Messenger):
    """Gives the sites of a guide's trace scale and mask of the program that is replayed against it.

    Args:
        trace: the guide's.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.nodes = trace.nodes
        auxiliary = [
            name
            for name, node in trace.nodes.items()
            if node["type"] == "sample" and (node["infer"] or {}).get("is_auxiliary")
        ]
        self.joint = [n for n in auxiliary if not n.endswith(AUXILIARY)]

    def _pyro_post_sample(self, msg: Message) -> None:
        name = msg["name"]
        if name is None or msg["is_observed"] or name not in self.nodes:
            return
        if self.joint and (msg["mask"] is not None or msg["scale"] != 1):
            raise ConfigError(
                f"The guide draws several latents in one site ({self.joint[0]!r}), and {name!r} has a "
                "weight or a mask of its own: take a guide with a site for each (AutoNormal, AutoDelta)."
            )
        node = self.nodes[name]
        self._weigh(node, msg)
        fn = node["fn"]
        if type(fn) is Delta:
            node["fn"] = Image(fn.v, log_density=fn.log_density, event_dim=fn.event_dim)
        if name + AUXILIARY in self.nodes:
            self._weigh(self.nodes[name + AUXILIARY], msg)

    @staticmethod
    def _weigh(node: Message, as_in: Message) -> None:
        node["scale"], node["mask"] = as_in["scale"], as_in["mask"]


def shared_weights() -> SharedWeights | None:
    """Return what a program runs under where it is replayed against the trace of a guide; else None."""
    for handler in _PYRO_STACK:
        if isinstance(handler, ReplayMessenger) and handler.trace is not None:
            return SharedWeights(handler.trace)
    return None
