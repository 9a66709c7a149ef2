"""The demonstration: LoRA and both forms of BaRA on one task, in one table and on one page."""

from collections.abc import Mapping
from pathlib import Path

from bara_pyro.cli.demo_page import INDEX, METHODS, TRUTH, write_page
from bara_pyro.cli.running import run
from bara_pyro.cli.scores import score_columns, score_rows, score_table
from bara_pyro.cli.terminal import result, say, show
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.lm.loading import load_backbone
from bara_pyro.runs.config import RunConfig, for_rows, load_config
from bara_pyro.runs.devices import find_device
from bara_pyro.runs.evaluate import truth_scores, untrained_scores
from bara_pyro.runs.manifest import is_run
from bara_pyro.runs.ownership import clear
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.stored import stored_config
from bara_pyro.runs.system import System, build_system
from bara_pyro.types import Json

STEPS = 1500  # with 640 rows, LoRA is then clearly overconfident, and the demonstration takes a few minutes
QUICK = {"train.steps": 20, "task.limit": 48}


def demo(out: Path, given: Json, *, overwrite: bool, quick: bool) -> None:
    """Train the methods in turn, print the table of scores and write the page; see `bara demo`.

    An interrupted demonstration continues. `overwrite` starts a finished one again, or one with other
    settings. Each method writes its run into its own folder in `out`. `given` are settings by dotted key;
    None keeps a default.
    """
    settings = {**(QUICK if quick else {"train.steps": STEPS}), "predict.samples": [0, 10]}
    settings |= {key: value for key, value in given.items() if value is not None}
    configs = {method: load_config(overrides={**settings, "method": method}) for method in METHODS}
    if any(is_run(out / method) and not _same(out / method, config) for method, config in configs.items()):
        if not overwrite:
            raise ConfigError(f"{out} was started with other settings: add --overwrite to start again.")
        overwrite = True
    if overwrite:
        for folder in (*(out / method for method in METHODS), out):
            clear(folder)
    rows, system = _train_all(out, configs)
    write_page(out, system, rows, quick)
    show(score_table(rows))
    say(f"Open {out / INDEX}")
    result({"page": out / INDEX, "rows": rows})


def _same(folder: Path, config: RunConfig) -> bool:
    try:
        started, stored = stored_config(folder)
        return started == for_rows(config, stored["num_data"])
    except (CheckpointError, ValueError):
        return False


def _train_all(out: Path, configs: Mapping[str, RunConfig]) -> tuple[list[Json], System]:
    """Return the rows of the table, and one of the systems for what they share."""
    shared = configs["lora"]
    data = load_data(shared)
    backbone = load_backbone(shared.backbone.name, device=find_device(shared.backbone.device))
    system = build_system(shared, backbone, data)
    rows: list[Json] = [{"method": "no training", **untrained_scores(system)}]
    for method, config in configs.items():
        system = build_system(config, backbone, data)
        report = run(config, out / method, resume=True, system=system, name=METHODS[method])
        rows += score_rows(report, METHODS[method])
    scores = truth_scores(system)
    if scores is not None:
        # As text, so that the table marks the best of the methods and not the truth.
        known = [column for column in score_columns() if column.key in scores]
        shown = {column.key: format(scores[column.key], column.format) for column in known}
        rows.append({"method": TRUTH, **shown})
    return rows, system
