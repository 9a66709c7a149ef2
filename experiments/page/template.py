"""Words whose figures come from the stored results: `{{ study.mean("path/to/value", arm=..) | format }}`.

Every study is there under its name. One of arms has

    in_distribution.mean("nll", arm="bara-gate")                mean over tasks and seeds, largest S
    in_distribution.sd("nll", arm="bara-gate", task="micro-wgs", S=0)        standard deviation over seeds
    in_distribution.versus("lora", "bara-gate", task="average").nll.difference     a stored comparison

and one of entries

    pruning.mean("kept/0.01", method="lora")                    mean over the entries that have these fields
    pac_bayes["bara-gate 2478 0"].arms.prior.kl                 an entry by its key

besides `.about` and `.values(..)`. What is not there is an error. A number that is typed is one, too
(`typed_numerals`): results have to come from results.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError
from scipy.stats import t

from bara_pyro.errors import BaraError, DataError
from bara_pyro.report.table import Table
from experiments.engine.results import Results
from experiments.engine.search import load_choices
from experiments.engine.study import Seeds, Study
from experiments.page.parts import Folded
from experiments.page.spec import StudySpec, stored_studies
from experiments.page.values import draws_of, over_seeds, over_tasks, score


class Entries:
    """The view of a study of entries that templates have."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self.about = results.about

    def __getitem__(self, key: str) -> Any:
        return self._results.entries[key]

    def values(self, path: str, **fields: Any) -> list[float]:
        """Return the numbers at a path, parts separated by `/`, of the entries that have these fields.

        Raises:
            DataError: no entry has them.
        """
        found = [at(entry, path) for entry in self._results.having(**fields)]
        if not found:
            raise DataError(f"No entry of {self._results.study} has {fields}.")
        return found

    def mean(self, path: str, **fields: Any) -> float:
        """Return the mean of `values`."""
        return mean(self.values(path, **fields))

    def sd(self, path: str, **fields: Any) -> float:
        """Return the standard deviation of `values`."""
        return stdev(self.values(path, **fields))


class Arms:
    """The view of a study of arms that templates have."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.about = study.settings
        self.arms = list(study.arms)
        self.tasks = study.tasks

    def value(
        self, metric: str, arm: str, task: str | None = None, S: int | None = None
    ) -> tuple[float, float]:
        """Return mean and standard deviation over seeds of a score, the mean over tasks where none is named.

        Args:
            metric: a key of a record's `metrics` (`acc` and `ece` in percent, `nll` in nats), or a path from
                the record, `S` in it being replaced (`shifted/micro-far/auroc/S/entropy`).
            arm: of the study.
            task: one of its tasks.
            S: number of draws; the largest if None.

        Raises:
            DataError: there is no such arm, or no single finite number of it.
        """
        if arm not in self._study.arms:
            raise DataError(f"{self._study.name} has no arm {arm!r}, only {', '.join(self.arms)}.")
        tasks = self._study.arms[arm]
        runs: dict[str, Seeds] = {task: tasks[task]} if task else dict(tasks)
        samples = str(S) if S is not None else draws_of(runs)[-1]
        read = score(samples, metric)
        if "/" in metric:
            path = metric.replace("/S/", f"/{samples}/")
            read = lambda record: at(record, path)  # noqa: E731
        found = over_seeds(runs[task], read) if task else over_tasks(runs, list(runs), read)
        if isinstance(found, tuple):
            return found
        if not isinstance(found, int | float):
            raise DataError(f"{metric} of {arm} in {self._study.name} is {found!r}, no number.")
        return float(found), 0.0

    def mean(self, metric: str, arm: str, task: str | None = None, S: int | None = None) -> float:
        """Return the mean, see `value`."""
        return self.value(metric, arm, task, S)[0]

    def sd(self, metric: str, arm: str, task: str | None = None, S: int | None = None) -> float:
        """Return the standard deviation over seeds, see `value`."""
        return self.value(metric, arm, task, S)[1]

    def versus(self, reference: str, arm: str, task: str = "average") -> dict[str, Any]:
        """Return the stored comparison of an arm with a reference, on a task or on average."""
        for entry in self._study.comparisons:
            if (entry["reference"], entry["arm"], entry["task"]) == (reference, arm, task):
                return dict(entry)
        raise DataError(f"{self._study.name} has no comparison of {arm} with {reference} on {task}.")

    def differences(self, metric: str, arm: str, reference: str) -> dict[tuple[str, int], float]:
        """Return arm minus reference for each task and seed, largest S."""
        ours, theirs = self._study.arms[arm], self._study.arms[reference]
        reads = [score(draws_of(runs)[-1], metric) for runs in (ours, theirs)]
        return {
            (task, seed): finite(reads[0](ours[task][seed])) - finite(reads[1](theirs[task][seed]))
            for task, seeds in ours.items()
            for seed in seeds
        }

    def over_seeds(self, metric: str, arm: str, reference: str, level: float = 0.95) -> dict[str, float]:
        """Return arm minus reference, mean over tasks, with Student's t interval over the seeds."""
        by_seed: dict[int, list[float]] = {}
        for (_, seed), value in self.differences(metric, arm, reference).items():
            by_seed.setdefault(seed, []).append(value)
        means = [mean(values) for values in by_seed.values()]
        half = float(t.ppf((1 + level) / 2, len(means) - 1)) * stdev(means) / len(means) ** 0.5
        return {"difference": mean(means), "low": mean(means) - half, "high": mean(means) + half}

    def best(self, metric: str, lowest: bool = True, **where: Any) -> str:
        """Return the arm that is best by a score."""
        return (min if lowest else max)(self.arms, key=lambda a: self.mean(metric, a, **where))

    def rank(self, metric: str, arm: str, lowest: bool = True, **where: Any) -> int:
        """Return the place of an arm among all by a score, 1 the best."""
        order = sorted(self.arms, key=lambda a: self.mean(metric, a, **where), reverse=not lowest)
        return 1 + order.index(arm)


class Search:
    """The view of the search for settings that templates have."""

    def __init__(self) -> None:
        self._methods = load_choices()
        self.methods = list(self._methods)

    def nll(self, method: str, lr: float | None = None) -> float:
        """Return the lowest validation NLL of a method's trials (nats), or that of one learning rate."""
        trials = self._methods[method]["trials"]
        found = [t["nll"] for t in trials if lr is None or t["settings"] == {"train.lr": lr}]
        return float(min(found))

    def chosen(self, method: str, key: str = "train.lr") -> float:
        """Return a setting that was chosen."""
        return float(self._methods[method]["chosen"][key])

    def rank(self, method: str) -> int:
        """Return a method's place by the lowest validation NLL, 1 the best."""
        return 1 + sorted(self.methods, key=self.nll).index(method)


class Tables:
    """The tables of a page, for what is computed there: `pac_bayes.table(0)`; used through `row`."""

    def __init__(self, spec: StudySpec, stored: Any) -> None:
        self._make = lambda: [
            table
            for part in spec.parts(stored)
            for table in (part.tables if isinstance(part, Folded) else [part])
            if isinstance(table, Table)
        ]
        self._tables: list[Table] | None = None

    def row(self, number: int, **fields: Any) -> dict[str, Any]:
        """Return the row of a table that has these fields.

        Raises:
            DataError: no row has them, or more than one.
        """
        self._tables = self._tables or self._make()
        rows = [r for r in self._tables[number].rows if all(r.get(k) == v for k, v in fields.items())]
        if len(rows) != 1:
            raise DataError(f"{len(rows)} rows of table {number} have {fields}.")
        return dict(rows[0])


def finite(value: float | None) -> float:
    """Return a score that is there.

    Raises:
        DataError: it is infinite, which JSON holds as null.
    """
    if value is None:
        raise DataError("A score is infinite: no difference can be told.")
    return value


def at(value: Any, path: str) -> Any:
    """Return what stands at a path of keys and places."""
    for part in path.split("/"):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise DataError(f"There is no {path!r} in the results: {part!r} is not there.") from error
    return value


# Formats ---------------------------------------------------------------------------------------------------


def _first(value: Any) -> float:
    return float(value[0] if isinstance(value, tuple | list) else value)


def fixed(value: Any, digits: int = 1) -> str:
    """Return a number with so many digits; of a pair the first.

    >>> fixed(75.04), fixed((0.5591, 0.01), 3)
    ('75.0', '0.559')
    """
    text = f"{_first(value):,.{digits}f}"
    return text if float(text.replace(",", "")) else text.lstrip("-")


def signed(value: Any, digits: int = 1) -> str:
    """Return a number with its sign.

    >>> signed(1.06), signed(-0.0157, 3)
    ('+1.1', '-0.016')
    """
    text = f"{_first(value):+,.{digits}f}"
    return text if float(text.replace(",", "")) else text[1:]


def spread(value: tuple[float, float], digits: int = 1) -> str:
    """Return mean and standard deviation.

    >>> spread((0.5639, 0.0041), 3)
    '0.564 ± 0.004'
    """
    return f"{value[0]:.{digits}f} ± {value[1]:.{digits}f}"


def interval(entry: dict[str, Any], digits: int = 1) -> str:
    """Return a stored difference with its interval, and both standard errors where its rows are stored.

    >>> interval({"difference": 1.06, "low": 0.4, "high": 1.7, "se_seeds": 0.21, "se_rows": 0.3})
    '+1.1 [+0.4, +1.7] (SE 0.2 by seeds, 0.3 by rows)'
    """
    ends = f"[{signed(entry['low'], digits)}, {signed(entry['high'], digits)}]"
    errors = [
        f"{entry[key]:.{digits}f} by {name}"
        for key, name in (("se_seeds", "seeds"), ("se_rows", "rows"))
        if entry.get(key) is not None
    ]
    beside = f" (SE {', '.join(errors)})" if errors else ""
    return f"{signed(entry['difference'], digits)} {ends}{beside}"


FORMATS = {
    "f1": fixed,
    "f0": lambda value: fixed(value, 0),
    "f2": lambda value: fixed(value, 2),
    "f3": lambda value: fixed(value, 3),
    "percent": lambda value: fixed(100 * value),
    "s0": lambda value: signed(value, 0),
    "s1": signed,
    "s2": lambda value: signed(value, 2),
    "s3": lambda value: signed(value, 3),
    "pm1": spread,
    "pm2": lambda value: spread(value, 2),
    "pm3": lambda value: spread(value, 3),
    "i1": interval,
    "i3": lambda value: interval(value, 3),
}


NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Renderer:
    """Renders templates from a folder of results, each file of which is read once."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._specs = stored_studies(results)
        self._loaded: dict[str, Any] = {}
        self._environment = Environment(
            undefined=StrictUndefined,
            autoescape=False,  # noqa: S701 - Markdown
            keep_trailing_newline=True,
            trim_blocks=True,
        )
        self._environment.filters |= FORMATS
        self._environment.globals = {"search": Search(), "min": min, "max": max, "abs": abs, "words": NUMBERS}

    def load(self, stem: str) -> Any:
        """Return the results of a file, as its study reads them."""
        if stem not in self._loaded:
            self._loaded[stem] = self._specs[stem][1].load(stem, self._results)
        return self._loaded[stem]

    def text(self, path: Path) -> str:
        """Return a template rendered.

        Raises:
            DataError: it is no template, or names what is not there.
        """
        source = path.read_text()
        names = [stem for stem in self._specs if stem.replace("-", "_") in source]
        try:
            views = {stem.replace("-", "_"): self._view(stem) for stem in names}
            return self._environment.from_string(source).render(views)
        except (TemplateError, BaraError, KeyError, TypeError) as error:
            raise DataError(f"{path}: {error}") from error

    def _view(self, stem: str) -> Any:
        stored = self.load(stem)
        view: Any = Arms(stored) if isinstance(stored, Study) else Entries(stored)
        view.row = Tables(self._specs[stem][1], stored).row
        return view


# Typed numbers ---------------------------------------------------------------------------------------------

TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
# Settings stand in code spans; links, arXiv ids and names of models are no results.
ALLOWED = re.compile(r"`[^`]*`|\]\([^)]*\)|\barXiv \d{4}\.\d{4,5}|\b[A-Z]\w*[0-9.]+-\d+(\.\d+)?[BM]\b")
NUMERAL = re.compile(r"[+\-−±]?\d[\d,]*\.\d+|\d[\d,]* ?(%|percent\b|points\b|nats\b)")


def typed_numerals(text: str, path: Path) -> Iterator[str]:
    """Yield a line for each result that was typed: a number with decimals, a percentage, points or nats.

    >>> [*typed_numerals("Right in 75.0 % at `lr 0.1`, {{ x | f1 }} %.", Path("a.md"))]
    ["a.md:1: '75.0' is typed: take it from the results, or put a setting in backticks"]
    """
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])  # noqa: E731
    bare = ALLOWED.sub(blank, TAG.sub(blank, text))
    for match in NUMERAL.finditer(bare):
        line = bare.count("\n", 0, match.start()) + 1
        yield f"{path}:{line}: {match[0]!r} is typed: take it from the results, or put a setting in backticks"


def headline(answer: str) -> str:
    r"""Return the first sentence of an answer, on one line and without emphasis.

    >>> headline("**It does: by 1.2 points.** More\nwords.")
    'It does: by 1.2 points.'
    """
    text = " ".join(answer.split("\n\n")[0].split()).replace("**", "")
    return re.split(r"(?<=[.?!])\s+(?=[A-ZΦθ])", text)[0]
