"""Which level of BaRA's gates does what: global Phi, local theta, or both, in both forms.

python -m experiments hierarchy
"""

from experiments.engine.arguments import experiment_parser, start
from experiments.engine.conduct import conduct
from experiments.engine.search import chosen


def main() -> None:
    """Run the experiment."""
    methods, tasks = ["bara", "bara-gate"], ("micro-wgs", "micro-arcc", "micro-arce")
    args = experiment_parser(__doc__, runs="runs/study", methods=methods, tasks=tasks).parse_args()
    arms = {
        f"{method}, {latent}": {"method": method, **chosen(method), "method.latent": latent}
        for method in args.methods
        for latent in ("phi*theta", "phi", "theta")
    }
    conduct("hierarchy", arms, args)


if __name__ == "__main__":
    start(main)
