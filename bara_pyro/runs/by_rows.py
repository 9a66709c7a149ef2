"""Defaults that depend on the number of training rows: steps, settings, split-half calibration."""

from math import ceil

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.sections import TrainConfig

# Default length of training: passes over few rows, and over MANY_ROWS or more or with a search for the rate;
# passes over replies; the fewest and the most steps.
PASSES, MANY_ROWS, REPLY_PASSES = (10, 20), 640, 2
FEWEST_STEPS, MOST_STEPS = 100, 6000
# Split-half calibration needs at least so many rows, and so many held out: fewer say less about the
# temperature than its prior does (docs/calibrated.md). By default it is used below MANY_ROWS, and up to
# SEARCHED_ROWS if nobody says how to train. From MANY_ROWS on it holds out one half only.
SPLIT_HALF_ROWS, ASKED_ROWS, SEARCHED_ROWS = 20, 10, 5000


def for_rows(config: RunConfig, rows: int, held_out: int | None = None) -> RunConfig:
    """Return a configuration completed with the defaults for this number of training rows.

    Split-half calibration can hold out `held_out` rows; None: half. Without it, or together, `may_double` and
    `find_lr` raise a `ConfigError`.
    """
    config = config.model_copy(update={"method": config.method.for_rows(rows)})
    enough = held_out is None or held_out >= ASKED_ROWS or config.train.find_lr
    if _calibrated_by_default(config, rows) and enough:
        config = config.updated("adapter", calibrated=True)
    c = config.train
    for name in ("may_double", "find_lr"):
        if getattr(c, name) and not config.adapter.calibrated:
            raise ConfigError(
                f"train.{name}=true needs split-half calibration, which is off: set calibrated=True "
                f"(adapter.calibrated), or leave {name} out."
            )
    if c.may_double and c.find_lr:
        raise ConfigError(
            "train.may_double=true and train.find_lr=true are two ways to learn more: give only one."
        )
    if c.epochs is not None:
        steps = steps_of(c.epochs, rows, c.batch_size)
    elif c.steps is None:
        if config.adapter.calibrated:  # look for a better training, if nobody says how: rate, else length
            if _is_open(c):
                c = c.model_copy(update={"find_lr": True})
            elif c.may_double is None and not c.find_lr:
                c = c.model_copy(update={"may_double": True})
        replies = config.task.likelihood == "completion"
        steps = default_steps(rows, c.batch_size, replies=replies, searching=bool(c.find_lr))
    else:
        return config
    return config.model_copy(update={"train": c.model_copy(update={"steps": steps, "epochs": None})})


def may_calibrate(config: RunConfig, rows: int) -> bool:
    """Return whether this many rows are calibrated, provided that enough of them can be held out."""
    return bool(config.adapter.calibrated) or _calibrated_by_default(config, rows)


def _calibrated_by_default(config: RunConfig, rows: int) -> bool:
    """Whether this many rows are calibrated if nobody says so; docs/calibrated.md says why."""
    if config.adapter.calibrated is not None:
        return False
    if config.train.find_lr:  # asked for: what does not allow it is then an error
        return True
    if config.train.steps == 0 or config.task.likelihood != "answer":  # 0: a given adapter stays as it is
        return False
    most = SEARCHED_ROWS if _is_open(config.train) else MANY_ROWS - 1
    return not METHODS[config.method.name].tempered and SPLIT_HALF_ROWS <= rows <= most


def _is_open(section: TrainConfig) -> bool:
    """Whether nobody says at which rate or for how long to train."""
    given = (section.lr, section.steps, section.epochs, section.find_lr)
    return given == (None,) * 4 and not section.may_double


def turned(rows: int, held_out: int) -> bool:
    """Return whether the halves of split-half calibration are turned around.

    They are not if one of them has enough rows for a temperature, or related rows leave one below half of
    the other.
    """
    return rows < MANY_ROWS and 3 * held_out >= rows


def split_half_note(config: RunConfig, rows: int, held_out: int) -> list[str]:
    """Return a note if split-half calibration comes first, or if the rows do not allow it."""
    if _calibrated_by_default(config, rows) and held_out < ASKED_ROWS:
        return [
            f"no split-half calibration: so many of the {rows} training rows belong together that only "
            f"{held_out} can be held out, and it needs {ASKED_ROWS}"
        ]
    if not config.adapter.calibrated:
        return []
    learnt = str(rows - held_out)
    if turned(rows, held_out):
        learnt = "halves" if rows - 2 * held_out in (0, 1) else f"{learnt} and {held_out}"
    longer = "; if it is underconfident, training takes twice as many steps"
    what = f"{'choose the learning rate and ' if config.train.find_lr else ''}set the temperature"
    off = "--no-calibrated turns it off"
    if config.adapter.start is not None:
        off += ": do so if the adapter was trained on these rows, where the temperature stays near 1"
    return [
        f"split-half calibration comes first: fits on {learnt} of the {rows} training rows "
        f"{what}{longer if config.train.may_double else ''} ({off})"
    ]


def steps_of(epochs: float, rows: int, batch_size: int) -> int:
    """Return the number of steps of so many epochs, at least one."""
    return max(1, ceil(epochs * rows / batch_size))


def default_steps(rows: int, batch_size: int, *, replies: bool = False, searching: bool = False) -> int:
    """Return the default number of steps; record 6 of docs/decisions.md says why.

    If `searching`, split-half calibration looks for the learning rate (`find_lr`).

    >>> default_steps(80, 4), default_steps(640, 4), default_steps(100_000, 4)
    (200, 3200, 6000)
    """
    if replies:
        return min(MOST_STEPS, steps_of(REPLY_PASSES, rows, batch_size))
    few, many = PASSES
    passes = many if searching else min(many, max(few, many * rows / MANY_ROWS))
    return min(MOST_STEPS, max(FEWEST_STEPS, steps_of(passes, rows, batch_size)))
