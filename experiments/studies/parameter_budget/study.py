"""Baselines of twice the rank against BaRA of rank 8: is it the parameters, or the gates?

python -m experiments parameter_budget
"""

from argparse import Namespace

from experiments.engine.arguments import option, preset
from experiments.engine.methods import tagged
from experiments.engine.run import Arms
from experiments.engine.search import chosen
from experiments.page.parts import variants
from experiments.page.spec import arm_study


def arms(args: Namespace) -> Arms:
    """Return each method at rank 8, and baselines also at the larger rank."""
    found = {}
    for method in args.methods:
        settings = {"method": method, **preset(chosen(method))}
        found[f"{method}, r = 8"] = {**settings, "adapter.r": 8}
        if method not in tagged("ours"):
            # The scaling alpha / r stays at 2, as in the published budget table.
            larger = {"adapter.r": args.rank, "adapter.lora_alpha": 2.0 * args.rank}
            found[f"{method}, r = {args.rank}"] = {**settings, **larger}
    return found


STUDY = arm_study(
    "parameter_budget",
    __doc__,
    "Does BaRA beat baselines of twice its rank?",
    "Baselines of twice the rank against BaRA of rank 8, with their chosen settings.",
    variants,
    arms,
    methods=tagged("ranked", "ours"),
    tasks=("micro-wgs", "micro-arcc", "micro-arce"),
    options={"--rank": option(16, "of the baselines")},
)
