"""Words whose figures come from the stored results: `{{ study.mean("path/to/value", arm=..) | format }}`.

Every study is there under its name. One of arms has

    in_distribution.mean("nll", arm="bara-gate")                mean over tasks and seeds, largest S
    in_distribution.value("nll", arm="bara-gate", task="micro-wgs", S=0)     with its spread over seeds
    in_distribution.versus("lora", "bara-gate", task="average").nll.difference     a stored comparison

and one of entries

    pruning.mean("kept/0.01", method="lora")                    mean over the entries that have these fields
    pac_bayes["bara-gate 2478 0"].arms.prior.kl                 an entry by its key

What is not there is an error. A number that is typed is
one, too (`experiments.page.report`): results have to come from results.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError

from bara_pyro.errors import BaraError, DataError
from experiments.engine.differences import AVERAGE
from experiments.engine.methods import load_choices
from experiments.engine.results import Results, Study, having, load_results, stored_names
from experiments.engine.values import display, fixed, largest_draws, over_tasks, score
from experiments.page.spec import stored_studies


def spread(value: tuple[float, float], digits: int = 1) -> str:
    """Return mean and standard deviation.

    >>> spread((0.5639, 0.0041), 3)
    '0.564 ± 0.004'
    """
    return f"{value[0]:.{digits}f} ± {value[1]:.{digits}f}"


def bounded(what: str, sign: str, entry: dict[str, Any], digits: int = 1) -> str:
    """Return a stored number with its interval.

    >>> bounded("difference", "+", {"difference": 1.06, "low": 0.4, "high": 1.7})
    '+1.1 [+0.4, +1.7]'
    """
    middle, low, high = (fixed(entry[key], digits, sign) for key in (what, "low", "high"))
    return f"{middle} [{low}, {high}]"


KINDS: dict[str, Callable[..., str]] = {
    "f": fixed,
    "s": partial(fixed, sign="+"),
    "pm": spread,
    "b": partial(bounded, "difference", "+"),
    "w": partial(bounded, "mean", ""),
}
FORMATS: dict[str, Callable[..., str]] = {
    f"{name}{digits}": partial(shown, digits=digits) for name, shown in KINDS.items() for digits in range(4)
} | {"percent": lambda value: fixed(100 * value)}


class Entries:
    """What templates see of a study of entries."""

    def __init__(self, stored: Results) -> None:
        self._stored = stored

    def __getitem__(self, key: str) -> Any:
        return self._stored.entries[key]

    def value(self, path: str, **fields: Any) -> tuple[float, float]:
        """Return mean and standard deviation of the numbers at a path, over the entries with these fields.

        Raises:
            DataError: no entry has them, or there is no such path.
        """
        found = [at(entry, path) for entry in having(self._stored.entries.values(), **fields)]
        if not found:
            raise DataError(f"No entry of {self._stored.name} has {fields}.")
        return mean(found), stdev(found) if len(found) > 1 else 0.0

    def mean(self, path: str, **fields: Any) -> float:
        """Return the mean, see `value`."""
        return self.value(path, **fields)[0]


class Arms:
    """What templates see of a study of arms."""

    def __init__(self, stored: Study) -> None:
        self._stored = stored

    @property
    def arms(self) -> list[str]:
        """The names of its arms."""
        return list(self._stored.arms)

    @property
    def tasks(self) -> list[str]:
        """The names of its tasks."""
        return self._stored.tasks

    def value(
        self, metric: str, arm: str, task: str | None = None, S: int | None = None
    ) -> tuple[float, float]:
        """Return mean and standard deviation over seeds of a score, the mean over tasks where none is named.

        Args:
            metric: a key of a record's `metrics` (`acc` and `ece` in percent, `nll` in nats), or a path from
                the record, `S` in it being replaced (`shifted/micro-far/auroc/S/entropy`, `/steps`).
            arm: of the study.
            task: one of its tasks.
            S: number of draws; the largest if None.

        Raises:
            DataError: there is no such arm, or no single finite number of it.
        """
        study = self._stored
        if arm not in study.arms:
            raise DataError(f"{study.name} has no arm {arm!r}, only {', '.join(study.arms)}.")
        runs = {task: study.arms[arm][task]} if task else study.arms[arm]
        samples = str(S) if S is not None else largest_draws(runs)
        read = score(samples, metric)
        if "/" in metric:
            path = metric.strip("/").replace("/S/", f"/{samples}/")
            read = lambda record: at(record, path)  # noqa: E731
        found = over_tasks(runs, list(runs), read)
        if isinstance(found, tuple):
            return found
        if not isinstance(found, int | float):
            raise DataError(f"{metric} of {arm} in {study.name} is {found!r}, no number.")
        return float(found), 0.0

    def mean(self, *where: Any, **fields: Any) -> float:
        """Return the mean, see `value`."""
        return self.value(*where, **fields)[0]

    def versus(self, reference: str, arm: str, task: str = AVERAGE) -> dict[str, Any]:
        """Return the stored comparison of an arm with a reference, on a task or on average."""
        found = having(self._stored.comparisons, reference=reference, arm=arm, task=task)
        if not found:
            raise DataError(f"{self._stored.name} has no comparison of {arm} with {reference} on {task}.")
        return found[0]

    def rank(self, metric: str, arm: str) -> int:
        """Return the place of an arm among all by a score, 1 the lowest."""
        return 1 + sorted(self.arms, key=lambda a: self.mean(metric, a)).index(arm)


def searched_rank(method: str) -> int:
    """Return a method's place by the lowest validation NLL in the search for settings, 1 the best."""
    nll = {name: min(trial["nll"] for trial in found["trials"]) for name, found in load_choices().items()}
    return 1 + sorted(nll, key=nll.__getitem__).index(method)


def at(value: Any, path: str) -> Any:
    """Return what stands at a path of keys and places."""
    for part in path.split("/"):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise DataError(f"There is no {path!r} in the results: {part!r} is not there.") from error
    return value


class Renderer:
    """Renders templates from a folder of results, each file of which is read once.

    Attributes:
        studies: name -> study, of those that are stored.
        stored: names of all sets of results.
        load: name of a set of results -> what is stored.
        view: name of a set of results -> what templates see of it.
    """

    def __init__(self, results: Path) -> None:
        self.studies = stored_studies(results)
        self.stored = stored_names(results)
        self.load = cache(lambda name: load_results(name, results))
        self.view = cache(lambda name: view_of(self.load(name)))
        self._environment = Environment(
            undefined=StrictUndefined,
            autoescape=False,  # noqa: S701 - Markdown
            keep_trailing_newline=True,
            trim_blocks=True,
        )
        self._environment.filters |= FORMATS | {"display": display}
        self._environment.globals = {"searched_rank": searched_rank}

    def text(self, path: Path) -> str:
        """Return a template rendered.

        Raises:
            DataError: it is no template, or names what is not there.
        """
        source = path.read_text()
        names = {name: name.replace("-", "_") for name in self.stored}
        try:
            views = {said: self.view(name) for name, said in names.items() if said in source}
            return self._environment.from_string(source).render(views)
        except (TemplateError, BaraError, KeyError, TypeError) as error:
            raise DataError(f"{path}: {error}") from error


def view_of(stored: Results | Study) -> Arms | Entries:
    """Return what templates see of what is stored."""
    return Arms(stored) if isinstance(stored, Study) else Entries(stored)
