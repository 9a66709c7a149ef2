"""Find rows of another file that a run was trained on, and on which it is overconfident."""

from collections.abc import Sequence
from pathlib import Path

from bara_pyro.data import Example, Task, as_asked, is_file_name
from bara_pyro.data.clusters import compared_text
from bara_pyro.errors import BaraError
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.rows import load_data


def trained_on(rows: Sequence[Example], config: RunConfig, asked: Task) -> list[Example]:
    """Return the rows whose text is among the run's training rows, whatever their ids.

    Returns no rows if the training rows were given in Python, or if their file is missing or unreadable.

    Args:
        rows: rows in the format of the run's task.
        config: the run's configuration.
        asked: the run's task; only labels, names and columns are used.
    """
    name = config.task.name
    if config.task.likelihood == "completion" or not is_file_name(name) or not Path(name).is_file():
        return []
    try:
        find_ids = asked.columns is not None and asked.columns.id is not None
        task = as_asked(load_data(config, find_ids=find_ids), asked.labels, asked.names)
    except BaraError:
        return []
    known = set(map(compared_text, task.train))
    return [row for row in rows if compared_text(row) in known]
