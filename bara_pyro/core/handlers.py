"""Find and apply Pyro's handlers around a model or guide that is passed to an ELBO.

For a `GuideMessenger`, Pyro's `get_importance_trace` runs only the guide, with the guide's own model.
Handlers around the model that the ELBO was given, such as `poutine.scale(model, 10)`, would be dropped
silently.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from pyro import plate
from pyro.infer.enum import get_importance_trace
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.lift_messenger import LiftMessenger
from pyro.poutine.messenger import Messenger, unwrap
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK, Message
from pyro.poutine.substitute_messenger import SubstituteMessenger
from pyro.poutine.trace_messenger import TraceMessenger
from torch import nn

from bara_pyro.errors import ConfigError


def given_to_elbo(guide: Messenger) -> tuple[Callable, Callable] | None:
    """Return model and guide as passed to the Pyro ELBO that is calling this guide; None outside an ELBO.

    Pyro does not pass the model on, so it is looked up in the calling frame.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code is not get_importance_trace.__code__:
        frame = frame.f_back
    if frame.f_code is not get_importance_trace.__code__:
        return None
    model, passed = frame.f_locals["model"], frame.f_locals["guide"]
    return (model, passed) if unwrap(passed) is guide else None


def around_guide(fn: Callable, guide: Messenger) -> Sequence[plate]:
    """Return the plates around a guide, as vectorised particles use them.

    Any other handler would also act on the model's sites, and raises a `ConfigError`.
    """
    handlers = _around(fn, guide) or []
    for handler in handlers:
        if not isinstance(handler, plate):
            raise ConfigError(
                f"A {type(handler).__name__} is around the {type(guide).__name__}, which runs in one pass "
                "with its model: put the handler around the model, or remove it."
            )
    return handlers


def around_model(fn: Callable, model: object, plates: Sequence[plate]) -> Sequence[Messenger] | None:
    """Return the handlers around a model, from the outside in; None if `fn` does not wrap the model.

    The plates around its guide are left out. `poutine.replay`, which conflicts with the guide's draws, raises
    a `ConfigError`.
    """
    names = {each.name for each in plates}
    handlers = _around(fn, model)
    for handler in handlers or ():
        if isinstance(handler, ReplayMessenger):
            raise ConfigError(
                "poutine.replay is around the model, but the guide draws its latents: remove it, or set "
                "values with poutine.condition."
            )
    return handlers and [h for h in handlers if not (isinstance(h, plate) and h.name in names)]


def _around(fn: Callable, inner: object) -> list[Any] | None:
    """Return the handlers between a callable and the object that it wraps; None if it wraps another."""
    handlers = []
    while fn is not inner:
        # Calling a handler returns partial(_context_wrap, handler, fn) inside a wrapper of Pyro.
        args: tuple[Any, ...] = getattr(getattr(fn, "func", None), "args", ())
        if len(args) != 2 or not isinstance(args[0], Messenger):
            return None
        handler, fn = args
        handlers.append(handler)
    return handlers


def check_not_split(msg: Message) -> None:
    """Raise a `ConfigError` for a site set by `poutine.do`, whose weight Pyro would count twice."""
    if msg.get("_intervener_id") is not None:
        raise _counted_twice(str(msg["name"]))


def _counted_twice(site: str) -> ConfigError:
    return ConfigError(
        f"poutine.do sets {site!r}, whose weight Pyro would count twice: use poutine.condition."
    )


def check_stack(observed: str) -> None:
    """Raise a `ConfigError` for handlers around a program that would act in another way than they say.

    Of two `poutine.condition` handlers that set one site, the outer would win silently.
    `Predictive(poutine.condition(model, ..), guide=guide)` is such a case: it conditions on the guide's
    draws. `poutine.do` would weight the observed site twice.
    """
    values: dict[str, object] = {}
    for handler in _PYRO_STACK:
        if isinstance(handler, DoMessenger) and observed in handler.data:
            raise _counted_twice(observed)
        data = handler.data if isinstance(handler, ConditionMessenger) else None
        for name, value in data.items() if isinstance(data, dict) else ():
            if name in values and values[name] is not value:
                raise ConfigError(
                    f"Two poutine.condition handlers set {name!r} (Predictive uses one for the guide's "
                    "draws): remove one of them."
                )
            values[name] = value


class OwnParameters(Messenger):
    """Refuses a parameter for which Pyro's store or a handler has another tensor than its module.

    The module would keep its own: Pyro would train the tensor in the store, and `poutine.lift` and
    `poutine.substitute` would have no effect.
    """

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[str | None, object] = {}

    def _pyro_param(self, msg: Message) -> None:
        if len(msg["args"]) > 1 and isinstance(msg["args"][1], nn.Parameter):
            self.own[msg["name"]] = msg["args"][1]

    def _pyro_post_param(self, msg: Message) -> None:
        if msg["name"] in self.own and msg["value"] is not self.own[msg["name"]]:
            raise ConfigError(
                f"Pyro's store or a handler sets {msg['name']!r}, which its module would ignore: call "
                "pyro.clear_param_store(), or remove poutine.lift or poutine.substitute."
            )

    _pyro_post_sample = _pyro_post_param  # what `poutine.lift` makes of a parameter


def own_parameters() -> AbstractContextManager[object]:
    """Return a context that checks the parameters which an optimiser trains or a handler replaces."""
    replaced = any(
        isinstance(each, LiftMessenger | SubstituteMessenger)
        or (isinstance(each, TraceMessenger) and each.param_only)
        for each in _PYRO_STACK
    )
    return OwnParameters() if replaced else nullcontext()


class LatentsAlone(Messenger):
    """Masks observed sites for outer handlers that trace a guide, because the model counts them.

    They are also marked as auxiliary, or Pyro would warn that the guide has a site too many.
    """

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[str | None, Any] = {}

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"]:
            self.masks[msg["name"]], msg["mask"] = msg["mask"], False
            cast(dict[str, object], msg["infer"])["is_auxiliary"] = True

    def _pyro_post_sample(self, msg: Message) -> None:
        if msg["name"] in self.masks:
            msg["mask"] = self.masks.pop(msg["name"])  # restored for the guide's own traces


PROGRAM = threading.RLock()
"""Lock held while a program runs, because Pyro has one stack of handlers per process.

Forward passes in other threads wait. It is reentrant.
"""
