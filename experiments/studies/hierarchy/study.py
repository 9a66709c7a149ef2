"""Which level of BaRA's gates does what: global Phi, local theta, or both, in both forms.

python -m experiments hierarchy
"""

from experiments.engine.arguments import experiment_parser
from experiments.engine.run import run_study
from experiments.engine.search import chosen
from experiments.page.parts import by_method
from experiments.page.spec import arm_study


def main() -> None:
    """Run the experiment."""
    methods, tasks = ["bara", "bara-gate"], ("micro-wgs", "micro-arcc", "micro-arce")
    args = experiment_parser(__doc__, runs="runs/study", methods=methods, tasks=tasks).parse_args()
    arms = {
        f"{method}, {latent}": {"method": method, **chosen(method), "method.latent": latent}
        for method in args.methods
        for latent in ("phi*theta", "phi", "theta")
    }
    run_study("hierarchy", arms, args)


STUDY = arm_study(
    "Hierarchy of the gates",
    "BaRA with global gates Φ, local gates θ, or both.",
    main,
    by_method,
    order=15,
)
