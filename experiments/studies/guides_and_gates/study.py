"""BaRA with other posterior families, gate activations and noise levels than the paper's.

python -m experiments guides_and_gates
"""

from experiments.engine.arguments import experiment_parser
from experiments.engine.run import run_study
from experiments.engine.search import chosen
from experiments.engine.spaces import tagged
from experiments.page.parts import by_method
from experiments.page.spec import arm_study

VARIANTS: dict[str, dict[str, object]] = {
    "Weibull, softplus": {},
    "Gamma": {"method.guide": "gamma"},
    "log-normal": {"method.guide": "lognormal"},
    "point (NonLoRA)": {"method.guide": "delta"},
    "relu": {"method.activation": "relu"},
    "top-4": {"method.activation": "topk", "method.top_k": 4},
    "shape k (the text)": {"method.shape": "k", "method.max_kappa": 5.0},
    "one noise level a gate": {"method.shape_width": "scalar"},
    "noise level from 0.693": {"method.init_kappa": 0.693},
    "Algorithm 1 as printed": {
        "method.random_kappa": True,
        "method.max_kappa": 5.0,
        "method.init_kappa": 0.693,
        "method.normalize_input": False,
        "train.local_lr_scale": 1.0,
    },
}


def main() -> None:
    """Run the experiment."""
    methods = tagged("ours")
    args = experiment_parser(
        __doc__, runs="runs/study", methods=methods, tasks=("micro-wgs", "micro-arcc")
    ).parse_args()
    arms = {
        f"{method}, {variant}": {"method": method, **chosen(method), **settings}
        for method in args.methods
        for variant, settings in VARIANTS.items()
    }
    run_study("guides_and_gates", arms, args)


STUDY = arm_study(
    "Posterior families, gates and noise levels",
    "Variants of BaRA's guide, one setting changed each.",
    main,
    by_method,
    order=17,
)
