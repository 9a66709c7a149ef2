"""BaRA under the five Gamma priors of the paper, with the sparsity that they lead to.

    python -m experiments prior_sensitivity
    python -m experiments prior_sensitivity --beta-theta 1e-2 --name prior_sensitivity_strong

The prior acts through the KL terms, and theta's has a small weight by default: `--beta-theta` gives it more.
"""

from argparse import Namespace
from typing import Any

from experiments.engine.arguments import option
from experiments.engine.methods import tagged
from experiments.engine.run import Arms
from experiments.engine.search import crossed
from experiments.page.parts import by_method
from experiments.page.spec import arm_study

GAMMAS = ((1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0))


def arms(args: Namespace) -> Arms:
    """Return each method under each prior."""
    variants: dict[str, dict[str, Any]] = {}
    for a, b in GAMMAS:
        prior = {"name": "gamma", "concentration": a, "rate": b}
        variants[f"Gamma({a:g}, {b:g})"] = {
            **({} if args.beta_theta is None else {"method.beta_theta": args.beta_theta}),
            "method.phi_prior": prior,
            "method.theta_prior": prior,
            # The cap on the noise level that costs nothing is that of the prior: 1 / sqrt(a) or more.
            "method.max_kappa": max(1.0, a**-0.5),
        }
    return crossed(args.methods, variants)


STUDY = arm_study(
    "prior_sensitivity",
    __doc__,
    "Does the prior matter?",
    "BaRA under the five Gamma(shape, rate) priors of the paper.",
    by_method,
    arms,
    methods=tagged("ours"),
    options={
        "--beta-theta": {"type": float, "help": "weight of KL(theta); default: that of the method"},
        "--name": option("prior_sensitivity", "of the results"),
    },
)
