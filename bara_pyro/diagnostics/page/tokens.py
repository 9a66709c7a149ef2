"""Which tokens use the gates."""

from bara_pyro.diagnostics.gates.tokens import default_texts, token_maps
from bara_pyro.diagnostics.page.context import Context, Part
from bara_pyro.diagnostics.page.token_page import token_figure, token_page
from bara_pyro.report import Picture, Section

PAGE = "tokens.html"


def tokens(c: Context) -> Part | None:
    """Return the token maps, and write the page with a choice of layers beside the report."""
    body = [target.path for target in c.system.model.targets if not target.is_head]
    if not c.has_gates or not body:
        return None
    o = c.options
    samples = o.token_samples if c.system.guide.stochastic else 0
    texts = {f"text {i}": text for i, text in enumerate(o.texts, 1)} or default_texts(c.system)
    maps = token_maps(c.system, texts, samples=samples, tau=o.tau)
    about = (
        f"For each token the share of gates Φθ below {o.tau:g}, expected over {max(samples, 1)} draws. "
        "Light: few gates in use. The value is shown when the pointer rests on a token."
    )
    token_page(maps, c.out / PAGE, f"Token maps of {c.system.config.method.name}", about)
    means = {m.title: float(m.percent.mean()) for m in maps}
    shares = [(float(v), t) for m in maps for v, t in zip(m.mean, m.tokens, strict=True)]
    densest, sparsest = min(shares), max(shares)
    findings = (
        f"Over the tokens of {len(maps)} texts {densest[0]:.0f} to {sparsest[0]:.0f} % of the gates are "
        f"nearly off: fewest at {densest[1].strip()!r}, most at {sparsest[1].strip()!r}.",
    )
    picture = Picture(
        token_figure(maps), "Texts whose tokens are shaded by the share of gates that are nearly off.", about
    )
    text = (f"Layer by layer, with values: {PAGE}, beside this page.",)
    section = Section("Which tokens use the gates", text, figures=[picture])
    return Part(section, findings, {"mean_percent_by_text": means}, {"tokens": picture})
