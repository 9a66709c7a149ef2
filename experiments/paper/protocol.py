"""The published protocol: its data sets, its settings, and a recipe for every method.

Sources: arXiv 2606.29184, and the public code that its experiments build on (BayesAdapt, Bayesian-PEFT).
What neither of them says is named in `Arm.open`, which stands under every table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Settings = Mapping[str, Any]
"""Dotted settings, as `bara_pyro.runs.config.load_config(overrides=...)` takes them."""


@dataclass(frozen=True)
class DataSet:
    """A data set of the protocol: its name in the paper, and how many rows are trained and tested on."""

    name: str
    train: int
    test: int


DATASETS = {
    "winogrande_s": DataSet("WG-S", 640, 1267),
    "arc_challenge": DataSet("ARC-C", 1119, 299),
    "arc_easy": DataSet("ARC-E", 2251, 570),
    "winogrande_m": DataSet("WG-M", 2558, 1267),
    "openbookqa": DataSet("OBQA", 4957, 500),
    "boolq": DataSet("BoolQ", 2490, 3270),  # the first of 9,427: the paper has 2.49K and does not say which
    "mmlu_college_chemistry": DataSet("Chemistry", 0, 100),
    "mmlu_college_physics": DataSet("Physics", 0, 102),
    "ultrafeedback": DataSet("UltraFeedback", 62_135, 1000),
}
TRAINED_ON = tuple(DATASETS)[:6]
SHIFTED_FROM = "openbookqa"
SHIFTED = ("arc_challenge", "arc_easy", "mmlu_college_chemistry", "mmlu_college_physics")

SAMPLES = 10
PROTOCOL: Settings = MappingProxyType(
    {
        "backbone.dtype": "bfloat16",
        "task.max_length": 300,
        "adapter.r": 8,
        "adapter.lora_alpha": 16.0,
        "adapter.calibrated": False,
        "train.steps": 5000,
        "train.lr": 1e-4,
        "train.batch_size": 4,
        "train.warmup": 0.06,
        "predict.samples": [0, SAMPLES],
    }
)


@dataclass(frozen=True)
class Arm:
    """A row of the paper's tables.

    Attributes:
        name: in tables.
        settings: what the arm changes of `PROTOCOL`, among it the method.
        paper: its name in the paper's tables.
        open: what the paper leaves open, or this package does differently.
        kl_share: weight of KL(Phi) beside the mean cross-entropy of a row, instead of 1 / rows.
    """

    name: str
    settings: Settings
    paper: str
    open: tuple[str, ...] = ()
    kl_share: float | None = None

    @property
    def method(self) -> str:
        """The name in the registry of methods."""
        return str(self.settings["method"])


_SHARED = "one run on OBQA serves both tables; the public scripts train again for the shifted one, with "
ARMS = {
    "lora": Arm("MLE", {"method": "lora"}, "MLE"),
    "map": Arm(
        "MAP",
        {"method": "map_decoupled", "train.weight_decay": 0.01},
        "MAP",
        ("AdamW's decoupled weight decay of 0.01, as the public code calls MAP",),
    ),
    "mc_dropout": Arm("MC-Dropout", {"method": "mc_dropout", "method.p": 0.1}, "MC-Dropout"),
    "ensemble": Arm(
        "Ensemble",
        {"method": "ensemble", "method.members": 3, "method.average": "logits"},
        "Ensemble",
        ("3 members, from the number of parameters; logits are averaged, as in the public code",),
    ),
    "laplace": Arm(
        "Laplace",
        {"method": "laplace", "method.prior_precision": "evidence", "method.tokens": "sum"},
        "Laplace",
        ("prior precision of greatest evidence, curvature summed over tokens, as in the public code",),
    ),
    "blob": Arm(
        "BLoB",
        {"method": "blob", "method.recipe": "reproduction"},
        "BLoB",
        (f"{_SHARED}a cycle of KL weights as long as an epoch",),
    ),
    "scalabl": Arm(
        "ScalaBL",
        {"method": "scalabl", "method.recipe": "reproduction", "method.kl": "p||q"},
        "ScalaBL",
        (
            "KL(prior || posterior), as in the public code, which is no bound",
            f"{_SHARED}a rate of 0.1 instead of 0.2 for the KL",
        ),
    ),
    "clora": Arm(
        "C-LoRA",
        {"method": "clora", "method.recipe": "reproduction"},
        "C-LoRA",
        (
            "5,000 steps and the last checkpoint, as in the paper; the authors stop early",
            "cross-entropy of weight 1; the public code has 2 on WG-S, OBQA and BoolQ, and 4 on WG-M",
        ),
    ),
    "fvae": Arm(
        "FVAE-LoRA",
        {"method": "fvae", "method.recipe": "reproduction", "predict.samples": [0]},
        "FVAE-LoRA",
        (
            "the official code's loss and decoder, 33.98 M parameters; the paper's own version has 33.53 M",
            "predictions at the mean of z1, as in the official code",
        ),
    ),
    "bara-paper": Arm(
        "BaRA, Algorithm 1",
        {
            "method": "bara",
            "method.random_kappa": True,
            "method.init_kappa": 0.693,
            "method.max_kappa": 5.0,
            "method.normalize_input": False,
            "method.beta_theta": 1e-6,
            "train.local_lr_scale": 1.0,
        },
        "BaRA",
        (
            "the weights of both KL terms are not given: 1e-6 as in the code of BNDL, of sums over tokens",
            "Gamma(1 + 1/k) where the text prints exp(1 + 1/k), and k in Algorithm 1 read as 1/k",
            "theta is drawn for every token, Phi once a step; the update has LoRA's scale alpha / r = 2",
            "5,403,536 parameters by Algorithm 1; the paper's table has 5.608 M",
        ),
        kl_share=1e-6,
    ),
    "bara": Arm(
        "BaRA, our defaults",
        {"method": "bara-gate", "adapter.calibrated": None, "train.steps": None, "train.lr": 1e-3},
        "BaRA",
        ("gate form, learning rate 1e-3, steps by the number of rows: what `bara train` does by default",),
    ),
}
UNREAD = {
    "phi": ("method.beta_theta", "method.random_kappa", "method.normalize_input", "train.local_lr_scale"),
    "theta": ("method.beta_phi",),
}
"""Settings that BaRA with only one kind of gate does not have."""
OPEN = (
    "BoolQ: the first 2,490 of its 9,427 training rows; its labels as in the data set, which the public code "
    "swaps",
    "ARC: five classes, and an option that a row does not offer has probability 0",
    "each seed sets the initial values, the order of rows and the noise",
)
"""What the protocol leaves open for all methods."""


@dataclass(frozen=True)
class PaperRun:
    """One training: an arm, what a table varies in it, a data set and a seed.

    Attributes:
        variant: name of the variation; empty for the arm itself.
        settings: of the variation.
        shifted: data sets that the run is also tested on.
    """

    arm: str
    task: str
    seed: int
    variant: str = ""
    settings: Settings = field(default_factory=dict, compare=False)
    shifted: tuple[str, ...] = field(default=(), compare=False)

    @property
    def gates(self) -> bool:
        """Whether the sparsity of its gates is measured: on ARC-C, as in the paper."""
        return self.task == "arc_challenge" and self.arm in ("lora", "bara-paper", "bara")

    @property
    def name(self) -> str:
        """Its name in the records, and of its folder."""
        return "-".join(filter(None, (self.arm, self.variant, self.task, f"seed{self.seed}")))

    @property
    def label(self) -> str:
        """What it is called in messages."""
        varied = f" ({self.variant})" if self.variant else ""
        return f"{ARMS[self.arm].name}{varied} on {DATASETS[self.task].name}, seed {self.seed}"


def run_settings(run: PaperRun, typed: Settings) -> dict[str, Any]:
    """Return the dotted settings of a run: the protocol's, the arm's, the variation's, and what was typed."""
    arm = ARMS[run.arm]
    share = {} if arm.kl_share is None else {"method.beta_phi": arm.kl_share * DATASETS[run.task].train}
    own = {**PROTOCOL, **share, **arm.settings, **run.settings}
    for key in UNREAD.get(own.get("method.latent", ""), ()):
        own.pop(key, None)
    place = {"task.name": run.task, "seed": run.seed}
    place |= {"train.epochs": None} if "train.steps" in typed else {}
    return {**own, **typed, **place}


def published(own: Settings, typed: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the published settings of a table with settings of its own that hold, and the typed others."""
    known = {key: value for key, value in {**PROTOCOL, **own}.items() if value is not None}
    given = {key: value for key, value in typed.items() if known.get(key) != value}
    replaced = {*given, *(["train.epochs"] if "train.steps" in typed else [])}
    return {key: value for key, value in known.items() if key not in replaced}, given
