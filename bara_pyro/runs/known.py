"""Which rows of another file a run was trained on: of these it is surer than of others."""

from collections.abc import Sequence
from pathlib import Path

from bara_pyro.data import Example, Task, as_asked, is_file_name
from bara_pyro.data.clusters import compared_text
from bara_pyro.errors import BaraError
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.rows import load_data


def trained_on(rows: Sequence[Example], config: RunConfig, asked: Task) -> list[Example]:
    """Return those rows whose text stands among the run's training rows, whatever they are called.

    Nothing is known of rows that were given in Python, and of a file that is gone or has changed its form.

    Args:
        rows: asked as the run's own.
        config: the run's.
        asked: its task; only labels, names and columns are read.
    """
    name = config.task.name
    if config.task.likelihood == "completion" or not is_file_name(name) or not Path(name).is_file():
        return []
    try:
        found = asked.columns is not None and asked.columns.id is not None
        own = as_asked(load_data(config, find_ids=found), asked.labels, asked.names)
    except BaraError:
        return []
    known = set(map(compared_text, own.train))
    return [row for row in rows if compared_text(row) in known]
