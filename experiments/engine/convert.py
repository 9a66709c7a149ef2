"""Results of schema 1, which were of eight forms, as results of schema 2; every number stays as it is.

python -m experiments.engine.convert FILE ..
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bara_pyro.errors import DataError
from bara_pyro.runs.store import read_json, write_json
from experiments.engine.results import SCHEMA

Stored = Mapping[str, Any]


def converted(name: str, stored: Stored) -> dict[str, Any]:
    """Return the content of a file in the form of `experiments.engine.results`.

    Raises:
        DataError: it is of no known form.
    """
    about, entries = _parts(name, stored)
    found: dict[str, Any] = {"schema": SCHEMA, "study": name, "about": about, "entries": entries}
    return found | ({"comparisons": stored["comparisons"]} if stored.get("comparisons") else {})


def _parts(name: str, stored: Stored) -> tuple[dict[str, Any], dict[str, Any]]:
    if "runs" in stored and "settings" in stored:  # arms
        return dict(stored["settings"]), {
            f"{run['arm']} {run['task']} {run['seed']}": dict(run) for run in stored["runs"]
        }
    if "runs" in stored:  # scores on the other split, by hash
        return {}, dict(stored["runs"])
    if "programs" in stored:  # programs, and arms of each
        about = {**stored["settings"], "environment": stored["environment"]}
        return about, {
            f"{program} {arm}": {"program": program, "arm": arm, **found}
            for program, arms in stored["programs"].items()
            for arm, found in arms.items()
        }
    if isinstance(stored.get("entries"), Mapping):
        return dict(stored["about"]), dict(stored["entries"])
    if "entries" in stored:  # sparsity
        about = {key: value for key, value in stored.items() if key != "entries"}
        return about, {f"{e['method']} {e['r']} {e['task']} {e['seed']}": dict(e) for e in stored["entries"]}
    if "rows" in stored:  # the demonstration
        return {"task": stored["task"]}, {
            f"{row['method']} {row.get('S', '')}".strip(): dict(row) for row in stored["rows"]
        }
    values = list(stored.values())
    if values and all(isinstance(value, Mapping) and "methods" in value for value in values):  # costs
        return {}, {
            f"{place} {method}": {
                "method": method,
                **{key: value for key, value in about.items() if key != "methods"},
                **costs,
            }
            for place, about in stored.items()
            for method, costs in about["methods"].items()
        }
    if values and all(isinstance(value, Mapping) and "metrics" in value for value in values):  # reports
        return {}, {key: _report(key, report) for key, report in stored.items()}
    raise DataError(f"{name} is not of a form that schema 1 had: run the study again.")


def _report(key: str, report: Stored) -> dict[str, Any]:
    """Return the report of a run with what its name says: a learning rate's arm, or task and method."""
    settings = report["settings"]
    arm = key.rsplit(" ", 2)[0] if "before" in key or "after" in key else report["method"]
    return {"arm": arm, "lr": settings.get("train.lr"), **report}


def main() -> None:
    """Convert the files that are named, in place."""
    for path in map(Path, sys.argv[1:]):
        stored = read_json(path)
        if stored.get("schema") != SCHEMA:
            write_json(path, converted(path.stem, stored))
            print(f"Converted: {path}")


if __name__ == "__main__":
    main()
