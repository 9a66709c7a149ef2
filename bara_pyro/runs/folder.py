"""Load a run from its folder, with the rows that it was trained and tested on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bara_pyro.data import Example, Task, as_asked, encode_labels, is_file_name
from bara_pyro.data.clusters import compared_text
from bara_pyro.data.reply_tasks import ReplyTask
from bara_pyro.errors import BaraError, CheckpointError, DataError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone
from bara_pyro.lm.targets import find_targets
from bara_pyro.lm.verifying import computation, differing, fingerprint
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.devices import find_device
from bara_pyro.runs.manifest import ADAPTER, CONFIG, GUIDE, check_run, is_run
from bara_pyro.runs.rows import load_data, load_rows
from bara_pyro.runs.store import check_header, load_parameters, read_tensors
from bara_pyro.runs.stored import check_rows_there, stored_config, stored_task
from bara_pyro.runs.system import System, assemble
from bara_pyro.runs.writing import check_type, lora_tensors, split_guide
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import RunFile

OTHER_ROWS = "test on other rows with `bara evaluate --task FILE`"


def check_backbone(backbone: Backbone, folder: Path, stored: Json) -> None:
    """Raise a `CheckpointError` if a run was trained on a language model of other weights or settings."""
    if (current := fingerprint(backbone)) != stored["backbone_fingerprint"]:
        raise CheckpointError(
            f"{folder} was trained on a backbone with fingerprint {stored['backbone_fingerprint']}, but "
            f"{backbone.name!r} has {current}: give the right backbone (--model)."
        )
    if changed := differing(stored["backbone_computation"], computation(backbone)):
        raise CheckpointError(
            f"The settings of {backbone.name!r} have changed since {folder} was trained "
            f"({'; '.join(changed)}): restore them, or give the right backbone (--model)."
        )


def saved_step(system: System, folder: Path) -> int:
    """Return after how many steps a system's parameters in a folder were saved; 0 if there are none."""
    if not (folder / GUIDE).exists():
        return 0
    metadata = read_tensors(folder / GUIDE)[1]
    return int(metadata.get("step", 0)) if metadata.get("config_hash") == system.config.hash else 0


def load_weights(system: System, folder: Path) -> None:
    """Read the parameters of model and guide back.

    Raises:
        CheckpointError: a file is missing, damaged or foreign, or the two are of different runs.
    """
    adapter, adapter_data = read_tensors(folder / ADAPTER)
    guide, guide_data = read_tensors(folder / GUIDE)
    if adapter_data != guide_data:
        raise CheckpointError(
            f"{folder / ADAPTER} and {folder / GUIDE} belong to different runs: restore them, or train again."
        )
    config_hash = read_json(folder / CONFIG, RunFile)["config_hash"] if is_run(folder) else None
    if config_hash is not None and guide_data.get("config_hash") != config_hash:
        raise CheckpointError(
            f"{folder / GUIDE} belongs to a run with configuration {guide_data.get('config_hash')}, but "
            f"{folder / CONFIG} belongs to {config_hash}: another run wrote into the folder, so "
            "train again."
        )
    system.guide.prepare(guide)
    ours, others = split_guide(system)
    own = lora_tensors(system.model) | system.corrections.stored() | ours
    load_parameters(own, adapter, folder / ADAPTER)
    load_parameters(others, guide, folder / GUIDE)


def load_system(
    folder: str | Path,
    *,
    backbone: str | Path | Backbone | None = None,
    device: str | None = None,
    data_dir: str | Path | None = None,
    task: Task | ReplyTask | None = None,
    with_rows: bool = True,
) -> System:
    """Load a run from its folder; its predictions are the same, bit for bit.

    Args:
        folder: folder of a finished run.
        backbone: the language model, or its new location if it has moved.
        device: device to run on; default: the run's device.
        data_dir: new location of the data, if they have moved.
        task: rows to use instead of the run's own.
        with_rows: whether to load the run's own rows; predicting new rows does not need them.

    Returns:
        The fitted run, with `config`, `backbone`, `task`, `model`, `guide` and `corrections`.

    Raises:
        CheckpointError: a file is missing, damaged or foreign, or belongs to another backbone or other rows.
        ConfigError: the weights of the given language model have another dtype.

    Examples:
        >>> import bara_pyro as bp
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> again = bp.load_system("runs/first", with_rows=False)  # enough to answer new questions
        >>> questions = [{"id": "one", "question": run.task.test[0].question}]
        >>> bp.predict(again, questions).rows == bp.predict(run, questions).rows
        True
    """
    folder = Path(folder)
    check_run(folder)
    config, stored = stored_config(folder)
    in_memory, name = (backbone, None) if isinstance(backbone, Backbone) else (None, backbone)
    if in_memory is not None:
        device = in_memory.settings["device"]
    moved = {"backbone.name": name and str(name), "backbone.device": device, "task.data_dir": data_dir}
    config = load_config(overrides={key: value for key, value in moved.items() if value}, base=config)
    if in_memory is not None:
        check_type(in_memory, config)
    elif not config.backbone.name:
        raise CheckpointError(
            f"{folder} was trained on a language model without a name: load it with load_system(folder, "
            "backbone=bp.Backbone(model, tokenizer))."
        )
    where = find_device(config.backbone.device)
    reads_rows = task is None and with_rows
    if task is None:
        task = own_rows(folder, config, stored) if with_rows else stored_task(stored)
    if config.task.likelihood == "completion" and isinstance(task, Task):
        task = ReplyTask(task.name)  # without its rows
    lm = in_memory or load_backbone(config.backbone.name, dtype=config.backbone.dtype, device=where)
    check_backbone(lm, folder, stored)
    if isinstance(task, Task):
        # As in training, even if the model's chat template has changed since.
        task = replace(task, chat=stored_task(stored).chat)
        task = encode_labels(task, lm.tokenizer, config.task.labels)
    if reads_rows and isinstance(task, Task):
        for kind, now in (("names", task.names), ("labels", task.labels)):
            if list(now) != (trained_on := stored[kind]):
                raise CheckpointError(
                    f"{folder} was trained on the labels {', '.join(trained_on)}, but its data now have "
                    f"{', '.join(now)}: restore the data."
                )
    check_stored_rank(folder, config, lm, stored.get("rank_pattern") or {})
    system = assemble(config, lm, task, int(stored["num_data"]), stored.get("rank_pattern"))
    load_weights(system, folder)
    if reads_rows:
        check_own_rows(system, folder)
    return system


def fitted(run: System | str | Path, *, with_rows: bool = False) -> System:
    """Return a fitted run, loading it from its folder if a path is given, by default without its rows."""
    return run if isinstance(run, System) else load_system(run, with_rows=with_rows)


def own_rows(folder: Path, config: RunConfig, stored: Json) -> Task | ReplyTask:
    """Load the rows that a run was trained and tested on; errors as `check_rows_there`."""
    check_rows_there(folder, config, stored)
    return load_rows(config)


def check_own_rows(system: System, folder: Path) -> None:
    """Raise a `DataError` if a system's training or test rows differ from those of the run in a folder.

    If the training rows have changed, some of them may now be test rows. A run that was saved without its
    rows has no fingerprints and passes.
    """
    stored, name = read_json(folder / CONFIG, RunFile), system.config.task.name
    now = system.fingerprints()
    trained_on = stored.get("training_rows")
    if trained_on is not None and now.get("training_rows") != trained_on:
        raise DataError(
            f"{name} has changed since the run was trained, so its test rows may include training rows: "
            f"restore it, or {OTHER_ROWS}."
        )
    tested_on = now.get("test_rows")
    if tested_on is not None and stored.get("test_rows", tested_on) != tested_on:
        raise DataError(
            f"The test rows of {name} have changed since the run was scored on them: restore them, or "
            f"{OTHER_ROWS}."
        )


def trained_on(rows: Sequence[Example], config: RunConfig, asked: Task) -> list[Example]:
    """Return the rows whose text is among the run's training rows, whatever their ids.

    Returns no rows if the training rows were given in Python, or if their file is missing or unreadable. Only
    the labels, names and columns of the run's task are used.
    """
    name = config.task.name
    if config.task.likelihood == "completion" or not is_file_name(name) or not Path(name).is_file():
        return []
    try:
        task = as_asked(load_data(config), asked.labels, asked.names)
    except BaraError:
        return []
    known = set(map(compared_text, task.train))
    return [row for row in rows if compared_text(row) in known]


def check_stored_rank(
    folder: Path, config: RunConfig, backbone: Backbone, rank_pattern: Mapping[str, int]
) -> None:
    """Raise a `CheckpointError` if a run's files hold too few numbers for its rank, before any is allocated.

    Every program stores at least r numbers per input or per output of each adapted layer.
    """
    shapes = [shape for name in (ADAPTER, GUIDE) for shape in check_header(folder / name).values()]
    c = config.adapter
    r, targets = c.r, find_targets(backbone.lm, c.target_modules, c.top_layers)
    needed = sum(rank_pattern.get(t.path, r) * min(t.in_features, t.out_features) for t in targets)
    if needed > (there := sum(map(math.prod, shapes))):
        raise CheckpointError(
            f"{folder} has rank {r}, which needs at least {needed:,} numbers for {len(targets)} layers, but "
            f"its files hold {there:,}: restore it from a copy."
        )
