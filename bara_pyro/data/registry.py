"""The real datasets as a table: where each lives on the hub, its schema, its splits."""

from dataclasses import dataclass

from bara_pyro.data import schemas
from bara_pyro.data.schemas import LETTERS, Schema
from bara_pyro.errors import DataError, unknown


@dataclass(frozen=True)
class Source:
    """One dataset of the table.

    Attributes:
        hub, config: where it lives on the Hugging Face hub.
        schema: what turns a row into an `Example`.
        labels: the classes.
        paper: the name that papers give it.
        train: the split trained on; None for sets that are only evaluated on.
        test: the split tested on: the official validation split, as in the papers of this line.
        hub_test: its name on the hub, where that differs.
        without_train: how many leading rows of `test` become train where a folder has no train file;
            None where a folder without one is a mistake.
        note: what a reader of a result has to know.
    """

    hub: str
    config: str | None
    schema: Schema
    labels: tuple[str, ...]
    paper: str
    train: str | None = "train"
    test: str = "validation"
    hub_test: str | None = None
    without_train: int | None = None
    note: str = ""


_ARC_NOTE = "five classes A to E, of which most rows offer four; numeric labels 1-4 are read as A-D"
_OOD_NOTE = "evaluated only (out of distribution): its dev rows are not used"

SOURCES: dict[str, Source] = {
    "arc_easy": Source("allenai/ai2_arc", "ARC-Easy", schemas.ai2_arc, LETTERS[:5], "ARC-E", note=_ARC_NOTE),
    "arc_challenge": Source(
        "allenai/ai2_arc", "ARC-Challenge", schemas.ai2_arc, LETTERS[:5], "ARC-C", note=_ARC_NOTE
    ),
    "openbookqa": Source("allenai/openbookqa", "main", schemas.openbookqa, LETTERS[:4], "OBQA"),
    "winogrande_s": Source("allenai/winogrande", "winogrande_s", schemas.winogrande, LETTERS[:2], "WG-S"),
    "winogrande_m": Source("allenai/winogrande", "winogrande_m", schemas.winogrande, LETTERS[:2], "WG-M"),
    "boolq": Source(
        "google/boolq",
        None,
        schemas.boolq,
        ("False", "True"),
        "BoolQ",
        without_train=1600,
        note="labels as the passage says (True is 'True'); the code of earlier papers swaps them",
    ),
    "mmlu_college_chemistry": Source(
        "cais/mmlu", "college_chemistry", schemas.mmlu, LETTERS[:4], "Chem", None, "test", note=_OOD_NOTE
    ),
    "mmlu_college_physics": Source(
        "cais/mmlu", "college_physics", schemas.mmlu, LETTERS[:4], "Phy", None, "test", note=_OOD_NOTE
    ),
    "hellaswag": Source(
        "Rowan/hellaswag", None, schemas.hellaswag, LETTERS[:4], "HellaSwag", without_train=0
    ),
    "truthful_qa": Source(
        "truthfulqa/truthful_qa",
        "multiple_choice",
        schemas.truthful_qa,
        LETTERS[:13],
        "TruthfulQA mc1",
        train=None,
        note="options shuffled by row id (the right one stands first in the source); 13 classes, A to M",
    ),
    "ag_news": Source(
        "fancyzhx/ag_news",
        None,
        schemas.ag_news,
        LETTERS[:4],
        "AG News",
        hub_test="test",
    ),
}


def resolve(name: str) -> str:
    """Return the key of `SOURCES` that `name` means: the key, the paper's name, 'hub' or 'hub:config'.

    Raises:
        DataError: the name is unknown, or is a hub name that needs a config.
    """
    wanted = name.lower()
    for key, source in SOURCES.items():
        if wanted in (key, source.paper.lower(), f"{source.hub}:{source.config}".lower()):
            return key
    same_hub = [key for key, source in SOURCES.items() if wanted == source.hub.lower()]
    if len(same_hub) > 1:
        raise DataError(f"{name} holds several datasets: choose one of {', '.join(sorted(same_hub))}.")
    if not same_hub:
        raise DataError(
            f"{unknown('dataset', name, SOURCES)[:-1]}, a 'micro-' task, or a .jsonl or .csv file."
        )
    return same_hub[0]
