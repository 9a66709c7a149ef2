"""What published recipes and published bugs do to the figures, each beside the mended form.

    python -m experiments reproductions

Every arm has the learning rate, and every mended form the regularisation, that the search chose for its
method.
"""

from argparse import Namespace
from typing import Any

from experiments.engine.arguments import preset
from experiments.engine.run import Arms
from experiments.engine.search import chosen
from experiments.page.parts import by_method
from experiments.page.spec import arm_study

PUBLISHED: dict[str, Any] = {"method.recipe": "reproduction"}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "map_prior": {"Gaussian prior": {}},
    "map_decoupled": {"MAP as published: AdamW's decay": {"train.weight_decay": 0.01}},
    "ensemble": {"probabilities averaged": {}, "logits averaged": {"method.average": "logits"}},
    "laplace": {
        "prior precision of the search": {},
        "evidence maximised": {"method.prior_precision": "evidence"},
        "evidence, curvature summed over tokens": {
            "method.prior_precision": "evidence",
            "method.tokens": "sum",
        },
        "prior precision left at 1": {"method.prior_precision": 1.0},
    },
    "blob": {
        "ELBO": {},
        "two optimisers, G by SGD alone": PUBLISHED,
        "two optimisers, G by AdamW too": {**PUBLISHED, "method.scale_optimizer": "adamw"},
    },
    "scalabl": {
        "ELBO": {},
        "two optimisers, KL(q || p)": PUBLISHED,
        "two optimisers, KL(p || q) as published": {**PUBLISHED, "method.kl": "p||q"},
    },
    "clora": {"ELBO": {}, "KL of weight 1e-6 / 65, two optimisers": PUBLISHED},
    "fvae": {"tempered ELBO": {}, "official loss": PUBLISHED},
    "tfb": {
        "largest feasible noise": {},
        "published search, its bugs mended": {
            **PUBLISHED,
            "method.return_infeasible": False,
            "method.divide_by_rows": False,
        },
        "published search": PUBLISHED,
        "published search up to 0.2": {**PUBLISHED, "method.high": 0.2},
    },
}


def arms(args: Namespace) -> Arms:
    """Return each method as published, and mended."""
    return {
        f"{method}, {name}": {"method": method, **_settings(method, settings)}
        for method in args.methods
        for name, settings in VARIANTS.get(method, {"as it is": {}}).items()
    }


def _settings(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the chosen settings, or with a published recipe the chosen rate alone, and the variant's own."""
    found = chosen(method)
    if "method.recipe" in settings:
        found = {"train.lr": found["train.lr"]}
    return {**preset(found), **settings}


STUDY = arm_study(
    "reproductions",
    __doc__,
    "Do published recipes and errors matter?",
    "Methods as published (`recipe: reproduction`) beside the valid objectives of all other pages. Every "
    "arm has the learning rate, and every corrected form the regularisation, that the search chose for its "
    "method.",
    by_method,
    arms,
    methods=list(VARIANTS),
)
