"""Render the section on guarantees for new rows."""

from bara_pyro.extras.bounds.guarantees import CertifiedHead, Guarantees, PacBayes
from bara_pyro.report.html import Block, Details, Section
from bara_pyro.report.table import Column, Table

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
    "The certified bound of the paper's second appendix needs the gate form with both gates and an adapted "
    "answer head (Definition 1), which this run does not have."
)


def render_bounds(found: Guarantees) -> Section:
    """Render the bounds with their assumptions."""
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
    return Section("Guarantees", blocks, _plain(found), technical)


def _plain(result: Guarantees) -> str:
    if result.pac_bayes is not None:
        average = result.pac_bayes.average
        return (
            f"On new questions of the same kind the model errs at most {100 * average.held_out:.0f} % of the "
            f"time; on the {result.pac_bayes.rows} questions evaluated it erred {100 * average.mean:.0f} % "
            "of the time. The bound holds with 95 % probability if these questions were used neither for "
            "training nor for choosing settings."
        )
    if result.certified is not None and not result.certified.vacuous:
        bound = result.certified.bound
        return f"The model's loss on new questions of the same kind is at most {bound:.3g} nats."
    return "There is no useful bound for new questions; only the measured scores are available."


def _pac_bayes(bounds: PacBayes) -> str:
    drawn, average = bounds.drawn, bounds.average
    paid = drawn.pac_bayes if drawn.pac_bayes is not None else drawn.most
    return (
        "PAC-Bayes: with 95 % probability, the predictor that draws Φ and its answer errs at most "
        f"{100 * paid:.0f} % of the time if these rows were used only to fit Φ, and at most "
        f"{100 * drawn.held_out:.0f} % if they were not used at all (measured: {100 * drawn.mean:.0f} %). If "
        f"they were not used, the averaged predictor errs at most {100 * average.held_out:.0f} % of the time "
        f"(measured: {100 * average.mean:.0f} %)."
    )


def _certified(head: CertifiedHead) -> str:
    return (
        f"The certified bound is {head.bound:.3g} nats, and no loss exceeds {head.loss_cap:g} nats, so the "
        f"bound is {'vacuous' if head.vacuous else 'not vacuous'}. It covers only the answer head."
    )


def _bounds(bounds: PacBayes) -> list[Block]:
    caption = (
        f"Bounds (95 %), {bounds.rows} rows, {bounds.draws} draws each, KL(Φ) = {bounds.kl_phi:.1f} nats"
    )
    table = Table(BOUNDS, [bound.model_dump() for bound in bounds.bounds], caption)
    return [table, Details("What the PAC-Bayes bound covers and assumes", [bounds.statement])]


def _certificate(head: CertifiedHead) -> list[Block]:
    """Return the certificate, always with its assumptions."""
    table = Table(
        CONSTANTS, [vars(constant) for constant in head.constants], "Certified bound, answer head only"
    )
    return [Details("The certified bound: all constants and assumptions", [table])]
