"""A configuration made real: backbone, task, model and guide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor, nn

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import TextLikelihood
from bara_pyro.core.loading import AUTO, load_backbone
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.core.targets import find_targets
from bara_pyro.data import (
    EncodedSplit,
    Example,
    Task,
    answer_token_ids,
    encode,
    encode_labels,
    is_file_name,
    load_task,
)
from bara_pyro.data.rows import carve
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.methods import build
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.fingerprint import states_name
from bara_pyro.runs.launched import local_rank
from bara_pyro.runs.memory import check_memory

# Percentage of unknown tokens above which a data set is not what the language model can read.
UNKNOWN = 10.0


@dataclass(frozen=True, eq=False)
class System:
    """Everything that training and prediction work on.

    Attributes:
        config: the settings.
        backbone: the frozen language model with its tokenizer.
        task: the rows.
        answer_ids: long, `C`: the token of each class; empty where whole texts are scored.
        model, guide: the program and its posterior.
    """

    config: RunConfig
    backbone: Backbone
    task: Task
    answer_ids: Tensor
    model: AdaptedLM
    guide: SiteGuide
    _splits: dict[str, EncodedSplit] = field(default_factory=dict, init=False, repr=False)

    def split(self, name: str) -> EncodedSplit:
        """Return a split as token ids, encoded once; see `encode_split`."""
        if name not in self._splits:
            self._splits[name] = encode_split(self.config, self.backbone, self.task, name)
        return self._splits[name]


def adapter_options(config: RunConfig, rank_pattern: Mapping[str, int] | None = None) -> AdapterOptions:
    """Return what a program is told about its adapters; see `bara_pyro.core.program.AdaptedLM`."""
    options = cast(AdapterOptions, config.adapter.model_dump())
    if rank_pattern:
        options["rank_pattern"] = rank_pattern
    if config.task.labels == "texts":
        options["likelihood"] = TextLikelihood(mean=config.task.text_score == "mean")
    return options


def encode_split(config: RunConfig, backbone: Backbone, task: Task, name: str) -> EncodedSplit:
    """Return a split of a task as token ids.

    Raises:
        DataError: the split is empty, or a question is too long.
    """
    rows = getattr(task, name)
    if not rows:
        way_out = " (`bara train --validation-rows` sets some aside)" if name == "validation" else ""
        raise DataError(f"The task {task.name!r} has no {name} rows: choose another split or task{way_out}.")
    split = encode_rows(config, backbone, task, rows)
    if not len(split):
        raise DataError(
            f"No {name} row of {task.name!r} has a question of at most {config.task.max_length} tokens: "
            "raise task.max_length."
        )
    return split


def encode_rows(config: RunConfig, backbone: Backbone, task: Task, rows: Sequence[Example]) -> EncodedSplit:
    """Return rows of a task as token ids, with the texts of their answers where these are scored."""
    c = config.task
    classes = len(task.labels) if c.labels == "texts" else None
    return encode(
        rows, backbone.tokenizer, c.max_length, too_long=c.too_long, answers=task.names, classes=classes
    )


def unknown_note(split: EncodedSplit, name: str) -> list[str]:
    """Say, where it is more than a tenth, which share of a split the tokenizer cannot read."""
    if split.unknown <= UNKNOWN:
        return []
    return [
        f"{split.unknown:.0f} % of the tokens of the {name} rows are unknown to the tokenizer, so the model "
        "cannot read these words: give a model of their language"
    ]


def reading_notes(config: RunConfig, split: EncodedSplit, name: str) -> list[str]:
    """Say how many of the rows called `name` the model cannot read, or not whole."""
    notes = unknown_note(split, name)
    if split.shortened:
        length = config.task.max_length
        notes.append(f"{len(split.shortened)} {name} rows had their context or text cut to {length} tokens")
    if split.dropped:
        notes.append(f"{len(split.dropped)} {name} rows were left out: their question is too long")
    return notes


def states_note(config: RunConfig, backbone: Backbone, split: EncodedSplit) -> list[str]:
    """Say, where the lowest layers hold no adapter, what keeping their output takes."""
    depth = backbone.states.depth(find_targets(backbone.lm, config.adapter.target_modules))
    if not depth:
        return []
    size, folder = backbone.states.size(split.lengths), config.backbone.states_folder
    where = "memory" if folder is None else str(folder)
    note = f"the lowest {depth} layers hold no adapter and run once a row: {size / 2**20:,.0f} MiB in {where}"
    if folder is None and size > backbone.states.budget:
        note += f", of which {backbone.states.budget / 2**20:,.0f} are kept: give --states-folder for all"
    return [note]


def load_data(config: RunConfig) -> Task:
    """Load the task that a configuration names, its labels in words; see `data.encode_labels`."""
    c = config.task
    task = load_task(
        c.name,
        c.data_dir,
        validation_rows=c.validation_rows,
        seed=c.seed,
        revision=c.revision,
        test_file=c.test_file,
        test_fraction=c.test_fraction,
        classes=c.classes,
        text_column=c.text_column,
        label_column=c.label_column,
        choices_column=c.choices_column,
        context_column=c.context_column,
    )
    if c.train_rows is not None:
        task = _fewer(task, c.train_rows, c.train_rows_seed)
    if c.limit is None:
        return task
    return replace(
        task,
        train=task.train[: c.limit],
        validation=task.validation[: c.limit],
        test=task.test[: c.limit],
        notes=(*task.notes, f"only the first {c.limit} rows of each split"),
    )


def _fewer(task: Task, rows: int, seed: int | None) -> Task:
    """Keep so many training rows, those set aside for validation among them; the others are the first.

    With a seed they are drawn at random.
    """
    there = len(task.train) + len(task.validation)
    if rows > there:
        raise DataError(f"train_rows={rows} is more than the {there} rows of {task.name!r}: lower it.")
    kept = rows - len(task.validation)
    train, note = task.train[:kept], f"the first {kept} training rows"
    if seed is not None:
        note = f"{kept} training rows drawn at random (seed {seed})"
        train = task.train if rows == there else carve(task.train, kept, seed)[1]
    return replace(task, train=train, notes=(*task.notes, note))


def build_system(config: RunConfig, backbone: Backbone | None = None, task: Task | None = None) -> System:
    """Load what a configuration names and build model and guide, with initial values from its seed.

    Args:
        config: the settings.
        backbone: an already loaded one, to share between several systems.
        task: an already loaded one.

    Raises:
        BaraError: a name is unknown, a file unreadable, a label not a single token, or it cannot fit into
            memory.
    """
    device = find_device(config.backbone.device)
    task = task or load_data(config)
    if task.columns is not None and not is_file_name(config.task.name):
        # Rows given in Python: the configuration must not name other rows.
        config = config.model_copy(update={"task": config.task.model_copy(update={"name": task.name})})
    if not task.train:
        raise DataError(f"The task {task.name!r} has no training rows: it serves for evaluation only.")
    if backbone is None:
        backbone = load_backbone(config.backbone.name, dtype=config.backbone.dtype, device=device)
    task = encode_labels(task, backbone.tokenizer, config.task.labels)
    split = encode_split(config, backbone, task, "train")
    check_memory(config, backbone, split)
    notes = (*reading_notes(config, split, "train"), *states_note(config, backbone, split))
    task = replace(task, notes=(*task.notes, *notes))
    return assemble(config, backbone, task, len(split))


def assemble(
    config: RunConfig,
    backbone: Backbone,
    task: Task,
    num_data: int,
    rank_pattern: Mapping[str, int] | None = None,
) -> System:
    """Build model and guide on a loaded backbone, with initial values from the configuration's seed.

    `rank_pattern` is that of a pruned adapter: path of a module -> its rank.
    """
    task = encode_labels(task, backbone.tokenizer, config.task.labels)
    texts = config.task.labels == "texts"
    answer_ids = answer_token_ids(backbone.tokenizer, () if texts else task.labels)
    backbone.checkpointing = config.train.checkpointing
    if config.backbone.states_folder is not None:
        backbone.states.folder = config.backbone.states_folder / states_name(backbone, config.backbone.dtype)
    torch.manual_seed(config.seed)
    adapter = adapter_options(config, rank_pattern)
    model, guide = build(config.method, backbone, num_data, adapter)
    return System(config, backbone, task, answer_ids, model, guide)


def find_device(name: str) -> torch.device | str:
    """Return a device that is there; of several processes on a machine, "cuda" gives each a GPU of its own.

    "auto", which spreads a language model over all GPUs, is left as it is.

    Raises:
        ConfigError: the name is unknown, there is no such device, or several processes would share all GPUs.
    """
    if name == AUTO:
        if local_rank() is not None:
            raise ConfigError(
                "backbone.device='auto' takes all GPUs of a machine, which several processes cannot share: "
                "start one, or give 'cuda'."
            )
        return name
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None and (own := local_rank()) is not None:
            device = torch.device("cuda", own)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"The device {name!r} is unknown or not available: choose cpu, or cuda or mps where there is one."
        ) from error
    return device


def count_parameters(module: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
