"""Guides that see the input of the layer whose latent they sample, in one pass with the model.

`q(theta | x)` needs the layer's input, which depends on the draws of the layers below. Running a guide first
and replaying the model would run the language model twice; Pyro's `GuideMessenger` interleaves the two.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Final, cast

from pyro.distributions import TorchDistribution
from pyro.infer.autoguide.effect import AutoMessenger
from pyro.nn import pyro_method
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from bara_pyro.core.handlers import (
    LatentsAlone,
    around_guide,
    around_model,
    check_not_split,
    given_to_elbo,
)
from bara_pyro.core.likelihood import LIKELIHOOD
from bara_pyro.core.modules import Module, value_of
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.sampling import INPUT, SHARED
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError

PRIOR: Final = "prior"
"""Key of a site's `infer` under which Pyro's `GuideMessenger` keeps the prior that a posterior replaced."""


class SiteGuide(Module, AutoMessenger):  # type: ignore[metaclass]  # Pyro computes the metaclass that joins both
    """Base of all guides: subclasses define `get_posterior`.

    Args:
        model: the program whose latents the guide approximates.
    """

    # Forwards of the language model that `predictive` runs at once for a row, which its memory goes with.
    copies = 1

    # What Pyro's property of that name returns; a guide for one kind of program declares that kind, twice:
    # for who reads types, and for who gives it another (None: whatever says which latents it has).
    model: AdaptedLM
    program: ClassVar[type[AdaptedLM] | None] = None

    def __init__(self, model: AdaptedLM) -> None:
        if self.program is not None and not isinstance(model, self.program):
            raise ConfigError(
                f"A {type(self).__name__} is for a {self.program.__name__}, and this is a "
                f"{type(model).__name__}: choose a guide of its latents."
            )
        super().__init__(model)
        # Its own root name: otherwise guide and model parameters would share names in Pyro's store.
        self._pyro_name = "guide"
        # A list, because setting an attribute of a PyroModule costs as much as a small matrix product.
        self._inputs: list[tuple[Tensor | None, Tensor | None]] = []

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"] or site_is_subsample(msg):
            return
        if self._inputs:  # within `get_posterior`
            raise ConfigError(
                f"{type(self).__name__}.get_posterior samples {msg['name']!r} besides the site that it is "
                "asked for, and prediction has no address for that: return one distribution that holds both."
            )
        infer = cast(dict[str, object], msg["infer"])
        if msg["name"] == LIKELIHOOD:
            # Not observed when predicting: the answer keeps its own distribution.
            infer[PRIOR] = msg["fn"]
            return
        # Popped, so that a recorded trace does not keep every layer's input alive.
        check_not_split(msg)
        if msg["name"] not in self.model.latents.sites:
            raise ConfigError(
                f"A {type(self).__name__} has no posterior of {msg['name']!r}, which is no latent of its "
                f"{type(self.model).__name__}: leave out what samples it, such as poutine.lift."
            )
        given = infer.pop(INPUT, None), infer.pop(SHARED, None)
        self._inputs.append(cast(tuple[Tensor | None, Tensor | None], given))
        asked = cast(TorchDistribution, msg["fn"]).event_shape
        try:
            super()._pyro_sample(msg)
        finally:
            self._inputs.pop()
        # One of another size would broadcast, and its KL would be that of another bound.
        if (got := cast(TorchDistribution, msg["fn"]).event_shape) != asked:
            raise ConfigError(
                f"{type(self).__name__}.get_posterior gave {msg['name']!r} a distribution of event shape "
                f"{tuple(got)}, and its prior has {tuple(asked)}: give it that (`.to_event`)."
            )

    def _pyro_post_sample(self, msg: Message) -> None:
        infer = cast(dict[str, object], msg["infer"])
        if msg["is_observed"] and PRIOR in infer:  # a handler around all of it has set the latent since
            msg["fn"] = cast(Callable, infer.pop(PRIOR))
        super()._pyro_post_sample(msg)

    @property
    def stochastic(self) -> bool:
        """Whether draws differ: False where the guide puts all mass on a point."""
        return True

    @property
    def stochastic_once_fitted(self) -> bool:
        """Whether draws will differ when a method has fitted what it fits after training."""
        return self.stochastic

    @property
    def joint(self) -> bool:
        """Whether a draw is the same one for all rows, as a draw of latents that they share is."""
        return True

    def check(self, model: object) -> None:
        """Raise `ConfigError` where this is the guide of another model, which would run in its place.

        A model in a function or a handler of Pyro (`poutine.condition(model, ..)`) is another one.
        """
        if self.model is not model:
            raise ConfigError(
                f"This {type(self).__name__} was made for another model, or this one stands in a handler, "
                "which the guide would not run: build one for this model, and give the model itself."
            )

    def prepare(self, saved: dict[str, Tensor]) -> None:
        """Make room for what is fitted after training, before it is read back.

        For parameters that are too large to carry through training as zeros; nothing by default.

        Args:
            saved: the tensors of the guide's file, by name.
        """
        return

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        """Return `q(site)`, of the prior's batch and event shape; `self.input` is the layer's input."""
        raise NotImplementedError

    def predictive(self, batch: Batch, samples: int, seed: int) -> Tensor | None:
        """Return the answers' log-probabilities where they are not draws of the latents through the program.

        For an ensemble (its members are all the draws there are) and for a linearised posterior; None, the
        default, means draws. Arguments and result are those of `core.prediction.predict`; any number of draws
        will do, since the predictive distribution is their average. `predict` calls it with as many rows as
        fit its memory budget, `copies` forwards each.
        """
        return None

    def local_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of an amortiser, which are trained at a lower rate; none by default."""
        return []

    @property
    def input(self) -> Tensor:
        """The adapted layer's input at the site being sampled, float32 `[draws x] B x T x in_features`."""
        x = self._inputs[-1][0] if self._inputs else None
        if x is None:
            raise LookupError("This site was not sampled by bara_pyro.core.sampling.local_sample.")
        return x

    @property
    def shared(self) -> Tensor | None:
        """The draw of the global latent that the site being sampled meets, `[draws x 1 x] modules x r`."""
        return self._inputs[-1][1] if self._inputs else None

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]  # as Pyro's
        """Draw the latents in one run of the program; return the value of every sample site.

        An ELBO of Pyro takes `get_traces` next and never runs the model that it was given, whose handlers
        therefore act here. Anybody else replays that model, and weighs the latents of this one alone.

        Raises:
            ConfigError: the ELBO was given another model, or a handler that cannot act.
        """
        asked = given_to_elbo(self)
        if asked is None:
            with LatentsAlone():
                self._interleave((), args, kwargs)
        else:
            self._interleave(self._handlers(*asked), args, kwargs)
        nodes = self.trace.nodes
        return {name: value_of(node) for name, node in nodes.items() if node["type"] == "sample"}

    def beside(self, model: Callable, guide: Callable, args: Any, kwargs: Any) -> tuple[Trace, Trace]:
        """Run model and guide once as an ELBO was given them, handlers around them included.

        Args:
            model: the guide's model, or handlers of Pyro around it.
            guide: this guide, or plates around it.
            args: of the model.
            kwargs: of the model.

        Returns:
            The traces of model and guide.

        Raises:
            ConfigError: it is another model, or something stands around them that cannot act.
        """
        handlers = self._handlers(model, guide)
        with ExitStack() as stack:
            for plate in around_guide(guide, self):
                stack.enter_context(plate)
            self._interleave(handlers, args, kwargs)
        return self.get_traces()

    def _handlers(self, model: Callable, guide: Callable) -> Sequence[Messenger]:
        handlers = around_model(model, self.model, around_guide(guide, self))
        if handlers is None:
            self.check(model)
        return handlers or ()

    def run(self, batch: Batch) -> tuple[Trace, Trace]:
        """Run model and guide once; return their traces.

        Unlike calling the guide, Pyro's module context stays inactive, so that parameters are read without a
        `pyro.param` statement each and the global parameter store is not touched.
        """
        self.args_kwargs = (batch,), {}
        try:
            with self:
                self.model.forward(batch)
        finally:
            del self.args_kwargs
        return self.get_traces()

    @pyro_method
    def _interleave(self, handlers: Sequence[Messenger], args: tuple, kwargs: dict[str, Any]) -> None:
        self.args_kwargs = args, kwargs
        try:
            with self, ExitStack() as stack:
                for handler in handlers:
                    stack.enter_context(handler)
                self.model(*args, **kwargs)
        finally:
            del self.args_kwargs
