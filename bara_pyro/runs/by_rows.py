"""What follows from the number of training rows where nobody says: length, settings, a rehearsal."""

from math import ceil

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS
from bara_pyro.runs.config import RunConfig

# Training where nobody says how long: passes over few rows, and over so many and more; passes over replies;
# steps at least and at most.
PASSES, MANY_ROWS, REPLY_PASSES = (10, 20), 640, 2
FEWEST_STEPS, MOST_STEPS = 100, 6000
# Rows at least for a rehearsal, and at least that it is asked: fewer say less of the temperature than its
# prior does (docs/calibrated.md). Where nobody says whether there is one, fewer than MANY_ROWS.
REHEARSED_ROWS, ASKED_ROWS = 20, 10


def for_rows(config: RunConfig, rows: int, asked: int | None = None) -> RunConfig:
    """Return a configuration with what follows from the number of rows: steps, settings, a rehearsal.

    Args:
        config: to complete.
        rows: number of training rows.
        asked: how many of them a rehearsal could be asked; None: half.
    """
    config = config.model_copy(update={"method": config.method.for_rows(rows)})
    if _rehearsed_by_default(config, rows) and (asked is None or asked >= ASKED_ROWS):
        config = calibrated(config, True)
    c = config.train
    if c.may_double and not config.adapter.calibrated:
        raise ConfigError(
            "train.may_double=true lets a rehearsal say whether training is twice as long, and there is "
            "none: give calibrated=True (adapter.calibrated), or leave it out."
        )
    if c.epochs is not None:
        steps = steps_of(c.epochs, rows, c.batch_size)
    elif c.steps is None:
        steps = default_steps(rows, c.batch_size, replies=config.task.likelihood == "completion")
        if config.adapter.calibrated and c.may_double is None:
            c = c.model_copy(update={"may_double": True})
    else:
        return config
    return config.model_copy(update={"train": c.model_copy(update={"steps": steps, "epochs": None})})


def calibrated(config: RunConfig, value: bool | None) -> RunConfig:
    """Return a configuration that says whether there is a rehearsal; None: nothing of it."""
    return config.model_copy(update={"adapter": config.adapter.model_copy(update={"calibrated": value})})


def may_rehearse(config: RunConfig, rows: int) -> bool:
    """Return whether so many rows have a rehearsal where enough of them can be asked."""
    return bool(config.adapter.calibrated) or _rehearsed_by_default(config, rows)


def _rehearsed_by_default(config: RunConfig, rows: int) -> bool:
    """Whether so many rows are calibrated where nobody says otherwise; why so: docs/calibrated.md."""
    return (
        config.adapter.calibrated is None
        and config.task.likelihood == "answer"
        and METHODS[config.method.name].calibrated
        and REHEARSED_ROWS <= rows < MANY_ROWS
    )


def rehearsal_note(config: RunConfig, rows: int, asked: int) -> list[str]:
    """Say, where there is a rehearsal, that it comes first; where rows allow none, that there is none."""
    if _rehearsed_by_default(config, rows) and asked < ASKED_ROWS:
        return [
            f"no rehearsal for a temperature: so many of the {rows} training rows belong together that it "
            f"could be asked {asked}, and {ASKED_ROWS} are the least"
        ]
    if not config.adapter.calibrated:
        return []
    learnt = "half" if rows - 2 * asked in (0, 1) else str(rows - asked)
    longer = ", and training is twice as long where it is too unsure of itself"
    return [
        f"a rehearsal on {learnt} of the {rows} training rows comes first, for a temperature"
        f"{longer if config.train.may_double else ''} (--set adapter.calibrated=false leaves it out)"
    ]


def steps_of(epochs: float, rows: int, batch_size: int) -> int:
    """Return the number of steps that see every row so often, at least one."""
    return max(1, ceil(epochs * rows / batch_size))


def default_steps(rows: int, batch_size: int, *, replies: bool = False) -> int:
    """Return the number of steps where nobody gives one; why so many: docs/decisions.md, record 6.

    >>> default_steps(80, 4), default_steps(640, 4), default_steps(100_000, 4)
    (200, 3200, 6000)
    """
    if replies:
        return min(MOST_STEPS, steps_of(REPLY_PASSES, rows, batch_size))
    few, many = PASSES
    passes = min(many, max(few, many * rows / MANY_ROWS))
    return min(MOST_STEPS, max(FEWEST_STEPS, steps_of(passes, rows, batch_size)))
