"""Predictions together with the columns of the rows they belong to, in Python and as a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bara_pyro.types import Fields, Json

if TYPE_CHECKING:
    import pandas as pd

    from bara_pyro.data.tables import DataTable

SHOWN = 3  # rows that a `repr` prints


@dataclass(frozen=True, repr=False)
class Answers:
    """Predictions of rows.

    Attributes:
        rows: one dictionary per row: its `id`; the predicted `label`, as the data name it; `probs`, the
            probability of each label; `total`, `aleatoric` and `epistemic` uncertainty in nats. An option
            that only other rows have is in brackets and has probability 0.
        notes: remarks on the rows, such as how many were cut.
        given: the columns of each input row.
        classes: the names of the columns of probabilities: labels, or letters if each row lists its options.
    """

    rows: list[Json]
    notes: list[str]
    given: Sequence[Fields] = ()
    classes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        first = [
            f"  {row['id']}: {row['label']} ({max(row['probs'].values()):.3f})" for row in self.rows[:SHOWN]
        ]
        more = ["  ..."] if len(self.rows) > SHOWN else []
        return "\n".join([f"Answers of {len(self.rows)} rows", *first, *more])

    def lines(self) -> list[Json]:
        """Return one dictionary per row: its identifier, its input columns, and its prediction.

        An input column with the same name as a predicted one is renamed to `input_<name>`.
        """
        return [beside(cells, answer) for cells, answer in zip(self._given(), self.rows, strict=True)]

    def to_pandas(self) -> "pd.DataFrame":
        """Return the rows as a DataFrame, with a column `prob_<label>` for each class.

        Examples:
            >>> import bara_pyro as bp
            >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=5, limit=40, out="runs/first")
            >>> question = "vome meets bimu . in winter bimu keeps what ? A:goats B:ducks Answer :"
            >>> frame = bp.predict(run, [{"asked_id": "q7", "question": question, "by": "vome"}]).to_pandas()
            >>> [*frame.columns[:4]], frame["id"][0]
            (['id', 'asked_id', 'question', 'by'], 'q7')
        """
        import pandas as pd

        names = [f"prob_{name}" for name in self.classes or [*self.rows[0]["probs"]]]
        flat = []
        for row in self.rows:
            plain = {name: value for name, value in row.items() if name != "probs"}
            flat.append(plain | dict(zip(names, row["probs"].values(), strict=True)))
        return pd.DataFrame(
            [beside(cells, answer) for cells, answer in zip(self._given(), flat, strict=True)]
        )

    def _given(self) -> Sequence[Fields]:
        return self.given or [{}] * len(self.rows)


def beside(given: Fields, said: Json) -> Json:
    """Return a row's prediction with its input columns inserted after the identifier."""
    cells: Json = {}
    for name, cell in given.items():
        if name == "id" and str(cell).strip() == said["id"]:
            continue
        free = name
        while free in said or free in cells:
            free = f"input_{free}"
        cells[free] = cell
    return {"id": said["id"], **cells, **{name: value for name, value in said.items() if name != "id"}}


def carried(table: "DataTable") -> tuple[list[Json], list[str]]:
    """Return the columns of rows that can be written beside predictions, and notes on the others."""
    lost = [name for name in table.columns if not all(_is_json(row.get(name)) for row in table.rows)]
    notes = [f"column {name!r} is not written: not all of it is text, numbers or lists" for name in lost]
    return [{name: cell for name, cell in row.items() if name not in lost} for row in table.rows], notes


def _is_json(cell: object) -> bool:
    if isinstance(cell, dict | list):
        return all(map(_is_json, cell.values() if isinstance(cell, dict) else cell))
    return cell is None or isinstance(cell, str | int | float)
