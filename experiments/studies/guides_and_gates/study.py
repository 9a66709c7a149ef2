"""BaRA with other posterior families, gate activations and noise levels than the paper's.

python -m experiments guides_and_gates
"""

from experiments.engine.methods import tagged
from experiments.engine.search import crossed
from experiments.page.parts import by_method
from experiments.page.spec import arm_study

VARIANTS: dict[str, dict[str, object]] = {
    "Weibull, softplus": {},
    "Gamma": {"method.guide": "gamma"},
    "log-normal": {"method.guide": "lognormal"},
    "point (NonLoRA)": {"method.guide": "delta", "method.init_kappa": None},
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
STUDY = arm_study(
    "guides_and_gates",
    __doc__,
    "Do the posterior family, the gate and the noise matter?",
    "Variants of BaRA's guide, with one setting changed in each.",
    by_method,
    lambda args: crossed(args.methods, VARIANTS),
    methods=tagged("ours"),
)
