"""Base of guides that see the layer's input and run in one pass with the model.

`q(theta | x)` needs the layer's input, which depends on the draws in the layers below. Running the guide
first and then replaying the model would run the language model twice; Pyro's `GuideMessenger` interleaves
both.
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

from bara_pyro.core.handlers import LatentsAlone, around_guide, around_model, check_not_split, given_to_elbo
from bara_pyro.core.latents import INPUT, SHARED
from bara_pyro.core.likelihood import LIKELIHOOD
from bara_pyro.core.modules import Module, value_of
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError

PRIOR: Final = "prior"
"""Key in a site's `infer` under which Pyro's `GuideMessenger` keeps the prior."""


class SiteGuide(Module, AutoMessenger):  # type: ignore[metaclass]  # Pyro computes the metaclass that joins both
    """Base of all guides: subclasses define `get_posterior`.

    Args:
        model: the program whose latents the guide approximates.
    """

    # Number of forwards per row that `predictive` runs at once; determines its memory.
    copies = 1

    # `model` declares the type of Pyro's property. A guide for one kind of program sets `program` as well,
    # which is checked at run time; None accepts every program.
    model: AdaptedLM
    program: ClassVar[type[AdaptedLM] | None] = None

    def __init__(self, model: AdaptedLM) -> None:
        if self.program is not None and not isinstance(model, self.program):
            raise ConfigError(
                f"A {type(self).__name__} is for a {self.program.__name__}, not for a "
                f"{type(model).__name__}: choose a guide for its latents."
            )
        super().__init__(model)
        # A separate root name: otherwise guide and model parameters could share names in Pyro's store.
        self._pyro_name = "guide"
        # A list, because setting an attribute of a PyroModule costs as much as a small matrix product.
        self._inputs: list[tuple[Tensor | None, Tensor | None]] = []

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"] or site_is_subsample(msg):
            return
        if self._inputs:  # within `get_posterior`
            raise ConfigError(
                f"{type(self).__name__}.get_posterior samples the additional site {msg['name']!r}, which "
                "prediction cannot reproduce: remove poutine.lift, or return one distribution for both."
            )
        infer = cast(dict[str, object], msg["infer"])
        if msg["name"] == LIKELIHOOD:
            # In prediction the answer is not observed and keeps its own distribution.
            infer[PRIOR] = msg["fn"]
            return
        # Popped, so that a recorded trace does not keep every layer's input alive.
        check_not_split(msg)
        if msg["name"] not in self.model.latents.sites:
            raise ConfigError(
                f"{msg['name']!r} is not in the `latents` of the {type(self.model).__name__}: declare it "
                "there, sample it in a function that calls the model, or remove poutine.lift."
            )
        inputs = infer.pop(INPUT, None), infer.pop(SHARED, None)
        self._inputs.append(cast(tuple[Tensor | None, Tensor | None], inputs))
        expected = cast(TorchDistribution, msg["fn"]).event_shape
        try:
            super()._pyro_sample(msg)
        finally:
            self._inputs.pop()
        # A posterior of another size would broadcast, and the KL would silently be wrong.
        if (got := cast(TorchDistribution, msg["fn"]).event_shape) != expected:
            raise ConfigError(
                f"{type(self).__name__}.get_posterior gave {msg['name']!r} the event shape {tuple(got)}, but "
                f"its prior has {tuple(expected)}: use `.to_event`."
            )

    def _pyro_post_sample(self, msg: Message) -> None:
        infer = cast(dict[str, object], msg["infer"])
        if msg["is_observed"] and PRIOR in infer:  # an outer handler has set the latent in the meantime
            msg["fn"] = cast(Callable, infer.pop(PRIOR))
        super()._pyro_post_sample(msg)

    @property
    def stochastic(self) -> bool:
        """Whether draws differ; False for a guide that puts all mass on one point."""
        return True

    @property
    def stochastic_once_fitted(self) -> bool:
        """Whether draws will differ once a method has fitted the posterior after training."""
        return self.stochastic

    @property
    def joint(self) -> bool:
        """Whether all rows share a draw, as they do with draws of global latents."""
        return True

    def check(self, model: object) -> None:
        """Check that this guide was made for `model`, since a guide always runs its own model.

        A model inside a function or one of Pyro's handlers (`poutine.condition(model, ..)`) is another model.

        Raises:
            ConfigError: the guide belongs to another model.
        """
        if self.model is not model:
            raise ConfigError(
                f"This {type(self).__name__} was made for another model, or this model is inside a handler, "
                "which the guide would not run: make a guide for this model and pass the model itself."
            )

    def prepare(self, saved: dict[str, Tensor]) -> None:
        """Allocate parameters that are fitted after training, before a saved run is loaded.

        For parameters that are too large to carry through training as zeros; does nothing by default.

        Args:
            saved: the tensors of the guide's file, by name.
        """
        return

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        """Return the posterior of a site.

        Args:
            name: name of the site.
            prior: the site's prior.

        Returns:
            The posterior, in the prior's batch and event shape; `self.input` holds the layer's input.
        """
        raise NotImplementedError

    def predictive(self, batch: Batch, samples: int, seed: int) -> Tensor | None:
        """Return log-probabilities of the answers for guides whose predictions are not draws of the latents.

        Ensembles and linearised posteriors override it; None, the default, makes `predict` draw latents.
        Arguments and result are those of `core.prediction.predict`, except that the number of draws returned
        is free: the predictive distribution is their average. `predict` calls it with as many rows as fit its
        memory budget, at `copies` forwards per row.
        """
        return None

    def local_parameters(self) -> list[nn.Parameter]:
        """Return the amortiser's parameters, which may get another learning rate; none by default."""
        return []

    @property
    def input(self) -> Tensor:
        """Input of the adapted layer at the current site, float32, `[draws x] B x T x in_features`."""
        x = self._inputs[-1][0] if self._inputs else None
        if x is None:
            raise LookupError("This site has no input: only sites sampled by local_sample, like theta, do.")
        return x

    @property
    def shared(self) -> Tensor | None:
        """Draw of the global latent that accompanies the current site, `[draws x 1 x] modules x r`."""
        return self._inputs[-1][1] if self._inputs else None

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]  # as Pyro's
        """Draw the latents in one run of the program; return the value of every sample site.

        Pyro's ELBOs call `get_traces` afterwards and never run the model that they were given, so handlers
        around that model act here. Other callers replay their model and count only the latents of this run.

        Raises:
            ConfigError: the ELBO was given another model, or an unsupported handler.
        """
        passed = given_to_elbo(self)
        if passed is None:
            with LatentsAlone():
                self._interleave((), args, kwargs)
        else:
            self._interleave(self._handlers(*passed), args, kwargs)
        nodes = self.trace.nodes
        return {name: value_of(node) for name, node in nodes.items() if node["type"] == "sample"}

    def beside(self, model: Callable, guide: Callable, args: Any, kwargs: Any) -> tuple[Trace, Trace]:
        """Run model and guide once, including the handlers around them that an ELBO was given.

        Args:
            model: the guide's model, possibly inside Pyro's handlers.
            guide: this guide, possibly inside plates.
            args: positional arguments of the model.
            kwargs: keyword arguments of the model.

        Returns:
            The traces of model and guide.

        Raises:
            ConfigError: it is another model, or a handler around them is not supported.
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

        Unlike a call of the guide, this does not enter Pyro's module context: parameters are read without
        `pyro.param` statements, and the global parameter store is not touched.
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


def check_guide(guide: object, model: AdaptedLM) -> None:
    """Raise a `ConfigError` unless this is a `SiteGuide` of this model."""
    if not isinstance(guide, SiteGuide):
        raise ConfigError(
            f"{type(guide).__name__} is not a `SiteGuide`: fit it with pyro.infer.SVI and predict with "
            "pyro.infer.Predictive."
        )
    guide.check(model)
