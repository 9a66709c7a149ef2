"""Which level of BaRA's gates does what: global Phi, local theta, or both, in both forms.

python -m experiments hierarchy
"""

from experiments.engine.methods import tagged
from experiments.engine.search import crossed
from experiments.page.parts import by_method
from experiments.page.spec import arm_study

VARIANTS = {latent: {"method.latent": latent} for latent in ("phi*theta", "phi", "theta")}
STUDY = arm_study(
    "hierarchy",
    __doc__,
    "Which gate does the work?",
    "BaRA with global gates Φ, local gates θ, or both.",
    by_method,
    lambda args: crossed(args.methods, VARIANTS),
    methods=tagged("ours"),
    tasks=("micro-wgs", "micro-arcc", "micro-arce"),
)
