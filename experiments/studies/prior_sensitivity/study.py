"""BaRA under the five Gamma priors of the paper, with the sparsity that they lead to.

    python -m experiments prior_sensitivity
    python -m experiments prior_sensitivity --beta-theta 1e-2 --name prior_sensitivity_strong

The prior acts through the KL terms, and theta's has a small weight by default: `--beta-theta` gives it more.
"""

from experiments.engine.arguments import experiment_parser
from experiments.engine.run import run_study
from experiments.engine.search import chosen
from experiments.page.parts import by_method
from experiments.page.spec import arm_study

GAMMAS = ((1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0))


def main() -> None:
    """Run the experiment."""
    methods = ["bara", "bara-gate"]
    parser = experiment_parser(__doc__, runs="runs/study", methods=methods, tasks=("micro-wgs", "micro-arcc"))
    parser.add_argument("--beta-theta", type=float, help="weight of KL(theta); default: that of the method")
    parser.add_argument("--name", default="prior_sensitivity", help="of the results; default: %(default)s")
    args = parser.parse_args()
    arms = {}
    for method in args.methods:
        for a, b in GAMMAS:
            prior = {"name": "gamma", "concentration": a, "rate": b}
            settings = {"method": method, **chosen(method), "method.beta_theta": args.beta_theta}
            arms[f"{method}, Gamma({a:g}, {b:g})"] = {
                **settings,
                "method.phi_prior": prior,
                "method.theta_prior": prior,
                # The cap on the noise level that costs nothing is that of the prior: 1 / sqrt(a) or more.
                "method.max_kappa": max(1.0, a**-0.5),
            }
    run_study(args.name, arms, args)


STUDY = arm_study(
    "Prior sensitivity",
    "BaRA under the five Gamma(shape, rate) priors of the paper.",
    main,
    by_method,
    order=16,
)
