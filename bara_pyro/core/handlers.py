"""Handlers of Pyro around a model or a guide that an ELBO is given: which there are, and which can act.

For a `GuideMessenger` Pyro's `get_importance_trace` runs the guide alone, with the model that the guide
holds: handlers around the model that it was given (`poutine.scale(model, 10)`) would be dropped without a
word.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pyro import plate
from pyro.infer.enum import get_importance_trace
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.messenger import Messenger, unwrap
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK, Message

from bara_pyro.errors import ConfigError


def given_to_elbo(guide: Messenger) -> tuple[Callable, Callable] | None:
    """Return model and guide as an ELBO of Pyro was given them, where it is one that calls this guide.

    Pyro hands the model to nobody there, so that it is looked up in the calling frame.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code is not get_importance_trace.__code__:
        frame = frame.f_back
    if frame.f_code is not get_importance_trace.__code__:
        return None
    model, given = frame.f_locals["model"], frame.f_locals["guide"]
    return (model, given) if unwrap(given) is guide else None


def around_guide(fn: Callable, guide: Messenger) -> Sequence[plate]:
    """Return the plates around a guide, those of vectorised particles.

    Raises:
        ConfigError: another handler is, which would act on the model's own sites, too.
    """
    handlers = _around(fn, guide) or []
    for handler in handlers:
        if not isinstance(handler, plate):
            raise ConfigError(
                f"A {type(handler).__name__} stands around the {type(guide).__name__}, which runs in one "
                "pass with its model: put the handler around the model, or leave it out."
            )
    return handlers


def around_model(fn: Callable, model: object, plates: Sequence[plate]) -> Sequence[Messenger] | None:
    """Return the handlers around a model, from the outside in; None where it is not in handlers alone.

    Args:
        fn: the model as it was given.
        model: the model that is to be run.
        plates: those that stand around its guide already.

    Raises:
        ConfigError: a handler cannot act, since a guide draws the values of all latents.
    """
    names = {own.name for own in plates}
    handlers = _around(fn, model)
    for handler in handlers or ():
        if isinstance(handler, ReplayMessenger):
            raise ConfigError(
                "poutine.replay stands around the model, and the guide draws its latents: leave it out, or "
                "set values with poutine.condition."
            )
    return handlers and [h for h in handlers if not (isinstance(h, plate) and h.name in names)]


def _around(fn: Callable, inner: object) -> list[Any] | None:
    """Return the handlers between a callable and what it wraps; None where it wraps another."""
    found = []
    while fn is not inner:
        # A handler's call gives partial(_context_wrap, handler, fn) in a shell of Pyro's own.
        args: tuple[Any, ...] = getattr(getattr(fn, "func", None), "args", ())
        if len(args) != 2 or not isinstance(args[0], Messenger):
            return None
        handler, fn = args
        found.append(handler)
    return found


def check_not_split(msg: Message) -> None:
    """Refuse a site of `poutine.do`, whose copy passes by all weights a second time, with a `ConfigError`."""
    if msg.get("_intervener_id") is not None:
        raise ConfigError(
            f"poutine.do sets {msg['name']!r}, and Pyro counts the weight of its KL twice: set it with "
            "poutine.condition."
        )


def check_conditions() -> None:
    """Refuse a site that two `poutine.condition` set, of which the outer one wins without a word.

    `Predictive(poutine.condition(model, ..), guide=guide)` is such: it conditions on the guide's draws.

    Raises:
        ConfigError: there is one.
    """
    found: dict[str, object] = {}
    for handler in _PYRO_STACK:
        data = handler.data if isinstance(handler, ConditionMessenger) else None
        for name, value in data.items() if isinstance(data, dict) else ():
            if name in found and found[name] is not value:
                raise ConfigError(
                    f"{name!r} is set by two poutine.condition, of which one may be Predictive's with draws "
                    "of the guide: leave one out."
                )
            found[name] = value


class LatentsAlone(Messenger):
    """Leaves what is observed without weight for whoever traces a guide, which is the model's to count."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[str | None, Any] = {}

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"]:
            self.masks[msg["name"]], msg["mask"] = msg["mask"], False

    def _pyro_post_sample(self, msg: Message) -> None:
        if msg["name"] in self.masks:
            msg["mask"] = self.masks.pop(msg["name"])  # for the guide's own traces


PROGRAM = threading.RLock()
"""Held while a program runs: Pyro keeps one stack of handlers for the whole process.

Forwards of other threads wait. To be taken again by the thread that has it.
"""
