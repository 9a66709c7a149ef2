"""Which tokens use the gates, as a result: the token maps of some texts."""

from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.gates.tokens import TokenMap, default_texts, token_maps
from bara_pyro.diagnostics.result import Number, Result


class TextUse(Result):
    """One text.

    Attributes:
        title: what it is called.
        tokens: the T tokens as they are read.
        mean: percent of gates off by token, over all modules, `T`.
        percent: the same by module, `M x T`.
    """

    title: str
    tokens: list[str]
    mean: list[Number]
    percent: list[list[Number]]


class TokenUse(Result):
    """Token maps.

    Attributes:
        tau: threshold below which a gate is off.
        draws: that expectations are over; 0 for the mean gate.
        modules: paths of the M modules.
        texts: in the order given.
    """

    tau: float
    draws: int
    modules: list[str]
    texts: list[TextUse]


def token_use(c: Context) -> TokenUse | None:
    """Return the token maps; None where no adapter but the answer head's has a gate."""
    if not c.has_gates or all(target.is_head for target in c.system.model.targets):
        return None
    o = c.options
    samples = o.token_samples if c.system.guide.stochastic else 0
    texts = {f"text {i}": text for i, text in enumerate(o.texts, 1)} or default_texts(c.system)
    maps = token_maps(c.system, texts, samples=samples, tau=o.tau)
    return TokenUse(tau=o.tau, draws=samples, modules=list(maps[0].modules), texts=list(map(text_use, maps)))


def text_use(found: TokenMap) -> TextUse:
    """Return a token map as a result, percent to two decimals."""
    return TextUse(
        title=found.title,
        tokens=list(found.tokens),
        mean=[round(value, 2) for value in found.mean.tolist()],
        percent=[[round(value, 2) for value in module] for module in found.percent.tolist()],
    )
