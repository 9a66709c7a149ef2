"""The section on what can be promised for new rows."""

from bara_pyro.diagnostics.shown import Shown, shown_section
from bara_pyro.extras.bounds.guarantees import CertifiedHead, Guarantees, PacBayes
from bara_pyro.report import Column, Details, Table
from bara_pyro.report.blocks import Block

BOUNDS = (
    Column("loss", "loss"),
    Column("mean", "measured", format=".3f"),
    Column("pac_bayes", "PAC-Bayes bound", format=".3f"),
    Column("held_out", "held-out bound", format=".3f"),
    Column("most", "never above", format=".3f"),
)
CONSTANTS = (
    Column("quantity", "quantity"),
    Column("value", "value", format=".4g"),
    Column("meaning", "meaning"),
)
NOT_OF_THAT_KIND = (
    "The certified bound of the paper's second appendix is about the gate form with both gates and an "
    "adapted answer head (Definition 1): this run is not of that kind."
)


def render_bounds(found: Guarantees) -> Shown:
    """Show the bounds, with what each assumes."""
    technical, blocks = [], list[Block]()
    if found.pac_bayes is not None:
        technical.append(_pac_bayes(found.pac_bayes))
        blocks += _bounds(found.pac_bayes)
    elif found.not_bounded:
        blocks.append(f"No PAC-Bayes bound: {found.not_bounded}")
    if found.certified is None:
        blocks.append(found.not_certified or NOT_OF_THAT_KIND)
    else:
        technical.append(_certified(found.certified))
        blocks += _certificate(found.certified)
    return shown_section("Guarantees", _plain(found), technical, blocks)


def _plain(found: Guarantees) -> str:
    if found.pac_bayes is not None:
        average = found.pac_bayes.average
        return (
            f"On new questions of the same kind the model errs at most {100 * average.held_out:.0f} % of the "
            f"time (on the {found.pac_bayes.rows} looked at: {100 * average.mean:.0f} %). This holds with 95 "
            "% probability if those questions were used neither to train nor to choose anything."
        )
    if found.certified is not None and not found.certified.vacuous:
        return (
            f"The model's loss on new questions of the same kind is at most {found.certified.bound:.3g} nats."
        )
    return "Nothing can be promised for new questions beyond what was measured."


def _pac_bayes(found: PacBayes) -> str:
    drawn, average = found.drawn, found.average
    paid = drawn.pac_bayes if drawn.pac_bayes is not None else drawn.most
    return (
        "PAC-Bayes: with 95 % probability the predictor that draws Φ and its answer errs at most "
        f"{100 * paid:.0f} % of the time (measured: {100 * drawn.mean:.0f} %) if these rows chose nothing "
        f"but Φ, and at most {100 * drawn.held_out:.0f} % if they chose nothing at all; then the averaged "
        f"predictor errs at most {100 * average.held_out:.0f} % of the time (measured: "
        f"{100 * average.mean:.0f} %)."
    )


def _certified(found: CertifiedHead) -> str:
    return (
        f"The certified bound is {found.bound:.3g} nats where no loss exceeds {found.loss_cap:g}: "
        f"{'it says nothing' if found.vacuous else 'it says something'}; it covers the answer head alone."
    )


def _bounds(found: PacBayes) -> list[Block]:
    caption = f"Bounds (95 %), {found.rows} rows, {found.draws} draws each, KL(Φ) = {found.kl_phi:.1f} nats"
    table = Table(BOUNDS, [bound.model_dump() for bound in found.bounds], caption)
    return [table, Details("What the PAC-Bayes bound covers and assumes", [found.statement])]


def _certificate(found: CertifiedHead) -> list[Block]:
    """Return the certificate; it never comes without its assumptions, folded or not."""
    table = Table(CONSTANTS, [vars(constant) for constant in found.constants], "Certified bound")
    text = f"Certified bound, of the answer head alone. {found.statement}"
    return [Details("The certified bound: every constant, and what is assumed", [text, table])]
