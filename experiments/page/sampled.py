"""The sections of studies of sampled replies: the best of n, diversity, frontiers, budgets, the tax."""

from collections.abc import Iterable

from experiments.engine.results import Results
from experiments.page.parts import Part, Picture
from experiments.page.sampled_entries import REFERENCE, scored, target_of
from experiments.page.sampled_figures import curve_figure, entropy_figure, frontier_figure, tax_figure
from experiments.page.sampled_tables import (
    budget_table,
    difference_table,
    frontier_table,
    scores_table,
    tax_table,
)

QUESTION = """\
Models that learnt {task} ({model}, {steps:,} training steps, {seeds}) write {replies} replies to every test
prompt, at temperatures of {temperatures}; each reply under a draw of the posterior of its own, or all at
the posterior mean ("mean"). Score: the expected best of n replies in percent, unbiased over all subsets of
the {replies}. Diversity: 100 - Self-BLEU of the first {few} replies of a prompt. Entropy: minus the log-
probability of a sampled token at temperature 1, in nats. Tax: under {samples} draws. Intervals (`95 %`) are
crossed over seeds and prompts where they are of differences at one temperature, and over prompts, seeds
averaged, of frontiers and budgets. Settings were chosen on validation replies (by NLL, as many trials for
every method); temperatures were not chosen.
"""


UNSCORED = """Every reply scores 0, at every temperature: there are no curves, frontiers or budgets to show.
"""
BANDS = "95 % intervals over seeds and prompts, each method by itself"


def parts(results: Results) -> Iterable[Part]:
    """Return the tables and figures; where nothing scores, those that do not need it."""
    entries, name = list(results.entries.values()), results.name
    few = f"the best of {target_of(entries)}"
    yield scores_table(entries)
    yield difference_table(entries)
    if scored(entries):
        yield frontier_table(entries)
        yield budget_table(entries)
    else:
        yield UNSCORED
    taxed = "tax" in entries[0]
    if taxed:
        yield tax_table(entries)
    if scored(entries):
        yield Picture(
            lambda: curve_figure(entries),
            f"{name}-best-of-n",
            f"Expected best of n at temperature 1; bands: {BANDS}.",
        )
    if scored(entries) and {entry["method"] for entry in entries} != {REFERENCE}:
        yield Picture(
            lambda: frontier_figure(entries),
            f"{name}-frontier",
            f"Score of one reply and of {few} against diversity, by temperature: draws and posterior mean of "
            f"each method, LoRA beside. Bands and bars: {BANDS}.",
        )
    yield Picture(
        lambda: entropy_figure(entries),
        f"{name}-entropy",
        f"{f'Score of {few}' if scored(entries) else 'Diversity'} against the entropy of a token, "
        f"temperature 1. Upright bars: {BANDS}; level bars: over seeds alone.",
    )
    if taxed:
        yield Picture(
            lambda: tax_figure(entries),
            f"{name}-tax",
            "Accuracy on questions after minus before, by task and on average; bars: 95 % intervals over "
            "seeds alone. Rows are not stored, so that bars say nothing of other questions.",
        )
