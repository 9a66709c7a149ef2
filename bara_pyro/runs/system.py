"""Build what a configuration describes: backbone, task, model and guide."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from torch import Tensor, nn

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import CompletionLikelihood, TextLikelihood
from bara_pyro.core.noise import seeded
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.data import (
    EncodedRows,
    EncodedSplit,
    Task,
    answer_token_ids,
    chat_frame,
    encode_labels,
    is_file_name,
)
from bara_pyro.data.clusters import split_halves
from bara_pyro.data.registry import has_worlds
from bara_pyro.data.reply_tasks import ReplyTask, is_reply_task
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.fast.capture import records
from bara_pyro.fast.predictions import replayed
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone
from bara_pyro.methods import METHODS, build
from bara_pyro.posthoc.corrections import CORRECTIONS, Corrections
from bara_pyro.runs.config import RunConfig, for_rows, may_calibrate
from bara_pyro.runs.devices import check_memory, find_device
from bara_pyro.runs.read_peft import put, read_peft, with_adapter
from bara_pyro.runs.rows import (
    check_readable,
    encode_split,
    load_rows,
    reading_notes,
    seed_note,
    split_half_note,
)

# Settings of the section `adapter` for corrections that are fitted after training (`bara_pyro.posthoc`).
CORRECTED = tuple(kind.option for kind in CORRECTIONS)
OTHERS = {*CORRECTED, "start"}  # settings of the section that a program does not take


@dataclass(frozen=True, eq=False, repr=False)
class System:
    """The objects of a run: settings, language model, rows, program and posterior.

    Attributes:
        config: the settings.
        backbone: the frozen language model with its tokenizer.
        task: the rows.
        answer_ids: long, `C`: the token of each class; empty if whole texts are scored.
        model, guide: the program and its posterior.
        corrections: corrections of predictions that are fitted after training.
        conversations: the rows, if replies are learnt; `task` then only has a name.
    """

    config: RunConfig
    backbone: Backbone
    task: Task
    answer_ids: Tensor
    model: AdaptedLM
    guide: SiteGuide
    corrections: Corrections
    conversations: ReplyTask | None = None
    _encoded: dict[str, EncodedRows] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        trained = count_parameters(self.model) + count_parameters(self.guide)
        return (
            f"System: method {self.config.method.name!r}, {trained:,} trainable parameters\n"
            f"  {self.backbone!r}\n"
            f"  {self.conversations or self.task!r}"
        )

    def split(self, name: str) -> EncodedSplit:
        """Return a split as token ids, encoded once; errors as `encode_split`.

        A model that learns replies raises a `ConfigError`.
        """
        require_answers(self.config)
        return cast(EncodedSplit, self.encoded(name))

    def encoded(self, name: str) -> EncodedRows:
        """Return a split of answers or replies as token ids, encoded once."""
        if name not in self._encoded:
            learns_replies = self.config.task.likelihood == "completion"
            rows = self.conversations or (ReplyTask(self.task.name) if learns_replies else self.task)
            self._encoded[name] = encode_split(self.config, self.backbone, rows, name)
        return self._encoded[name]

    def fingerprints(self) -> dict[str, str]:
        """Return fingerprints of the training and test rows."""
        rows = self.conversations or self.task
        if not rows.train:
            return {}
        prints = {"training_rows": self.encoded("train").fingerprint}
        if rows.test:
            prints["test_rows"] = self.encoded("test").fingerprint
        return prints

    def with_config(self, config: RunConfig) -> "System":
        """Return a copy that reads the same rows from another location."""
        again = replace(self, config=config)
        again._encoded.update(self._encoded)
        return again

    @property
    def noisy_answers(self) -> bool:
        """Whether a correction adds noise to the answers, so that draws are more than draws of adapters."""
        return any(part.adds_noise for part in self.corrections.parts)


def require_answers(config: RunConfig) -> None:
    """Raise a `ConfigError` for a model that learns replies, where classes are needed."""
    if config.task.likelihood == "completion":
        raise ConfigError(
            "This needs a fixed set of answers, but the model learns replies: train with "
            "likelihood='answer' (--likelihood answer)."
        )


def adapter_options(config: RunConfig, rank_pattern: Mapping[str, int] | None = None) -> AdapterOptions:
    """Return the options of a program's adapters; see `bara_pyro.core.program.AdaptedLM`."""
    options = cast(AdapterOptions, config.adapter.model_dump(exclude=OTHERS))
    if rank_pattern:
        options["rank_pattern"] = rank_pattern
    if config.task.likelihood == "completion":
        options["likelihood"] = CompletionLikelihood()
    elif config.task.labels == "texts":
        options["likelihood"] = TextLikelihood(mean=config.task.text_score == "mean")
    return options


def build_system(
    config: RunConfig,
    backbone: Backbone | None = None,
    task: Task | ReplyTask | None = None,
    *,
    started: RunConfig | None = None,
) -> System:
    """Load what a configuration names, and build model and guide with initial values from its seed.

    Args:
        config: the settings.
        backbone: a language model that is already loaded, to share it between systems.
        task: a task that is already loaded.
        started: the settings that a resumed run was started with, which it keeps; `config` has the present
            locations of its model and data (`runs.stored.resumed`).

    Raises:
        BaraError: a name is unknown, a file is unreadable, a label is not a single token, or the run cannot
            fit into memory.

    Examples:
        >>> from bara_pyro.runs.config import load_config
        >>> from bara_pyro.runs.system import build_system
        >>> system = build_system(load_config(overrides={"method": "lora", "task.limit": 8}))
        >>> type(system.model).__name__, type(system.guide).__name__, len(system.split("train"))
        ('LoRA', 'DeltaGuide', 8)
    """
    if started is not None and not started.adapter.calibrated:
        config = config.updated("adapter", calibrated=False)
    device = find_device(config.backbone.device)
    replies = config.task.likelihood == "completion"
    adapter = None if config.adapter.start is None else read_peft(config.adapter.start)
    if adapter is not None and adapter.base is not None and "name" not in config.backbone.model_fields_set:
        config = config.updated("backbone", name=adapter.base)
    task = task or load_rows(config)
    if isinstance(task, ReplyTask) != replies:
        likelihood = "answer" if replies else "completion"
        raise ConfigError(f"The rows given are a {type(task).__name__}: set task.likelihood={likelihood!r}.")
    named = is_file_name(config.task.name) or is_reply_task(config.task.name)
    if not named and (isinstance(task, ReplyTask) or task.columns is not None):
        config = config.updated("task", name=task.name)  # of rows given in Python
    if not task.train:
        raise DataError(
            f"The task {task.name!r} has no training rows and is for evaluation only: choose another task."
        )
    if backbone is None:
        backbone = load_backbone(config.backbone.name, dtype=config.backbone.dtype, device=device)
    _check_world(config, backbone, task.name)
    if adapter is not None:
        config = with_adapter(config, adapter, backbone)
    if isinstance(task, Task):
        if config.task.chat:
            task = replace(task, chat=chat_frame(backbone.tokenizer, config.task.system))
        task = encode_labels(task, backbone.tokenizer, config.task.labels)
    split = encode_split(config, backbone, task, "train")
    check_readable(split, backbone)
    held_out = 0
    if isinstance(task, Task) and isinstance(split, EncodedSplit) and may_calibrate(config, len(split)):
        held_out = len(split_halves(task, split, config.seed)[1])
    config = for_rows(config, len(split), held_out)
    check_memory(config, backbone, split)
    notes = (
        *reading_notes(config, backbone, split, "train"),
        *seed_note(config),
        *split_half_note(config, len(split), held_out),
    )
    task = replace(task, notes=(*task.notes, *notes))
    system = assemble(config, backbone, task, len(split), adapter.rank_pattern if adapter else None)
    if adapter is not None:
        put(adapter, system.model)
    _check_local_rate(system)
    system._encoded["train"] = split
    return system if started is None else system.with_config(started)


def _check_local_rate(system: System) -> None:
    """Refuse `local_lr_scale` if the guide is not amortised, or its optimiser does not train it."""
    c = system.config
    if (scale := c.train.local_lr_scale) is None:
        return
    optim = METHODS[c.method.name].svi(system.model, system.guide, c.train, c.method).optim
    moved = {id(p) for group in optim.param_groups for p in group["params"]}
    if moved.isdisjoint(map(id, system.guide.local_parameters())):
        raise ConfigError(
            f"train.local_lr_scale={scale} (--local-lr-scale) needs an amortised guide trained by the ELBO, "
            f"which {c.method.name!r} lacks: leave it out, or train bara, bara-gate, clora or fvae."
        )


def _check_world(config: RunConfig, backbone: Backbone, task: str) -> None:
    """Refuse questions about a world on which the language model was not pretrained."""
    known, wanted_world = backbone.world, config.task.world
    if known is not None and known != wanted_world and has_worlds(task):
        raise ConfigError(
            f"{backbone.name} knows world {known}, but {task!r} asks about world {wanted_world}: set "
            f"task.world={known}, or choose the language model of world {wanted_world}."
        )


def assemble(
    config: RunConfig,
    backbone: Backbone,
    task: Task | ReplyTask,
    num_data: int,
    rank_pattern: Mapping[str, int] | None = None,
) -> System:
    """Build model and guide on a loaded backbone, with initial values from the configuration's seed.

    `rank_pattern` has the ranks below r of a given adapter, path of a module -> rank.
    """
    conversations = task if isinstance(task, ReplyTask) else None
    labelled = Task(task.name, (), notes=task.notes) if isinstance(task, ReplyTask) else task
    labelled = encode_labels(labelled, backbone.tokenizer, config.task.labels)
    texts = config.task.labels == "texts"
    answer_ids = answer_token_ids(backbone.tokenizer, () if texts else labelled.labels, labelled.chat)
    backbone.shortcuts = frozenset(config.backbone.shortcuts)
    backbone.checkpointing = config.train.checkpointing
    adapter = adapter_options(config, rank_pattern)
    with seeded(backbone.device, config.seed):
        model, guide = build(config.method, backbone, num_data, adapter)
    if records(config.predict.capture, backbone.device):
        replayed(model, guide)
    start = METHODS[config.method.name].start
    if config.adapter.start is not None and start is not None and start.begin is not None:
        start.begin(model, guide)
    return System(
        config, backbone, labelled, answer_ids, model, guide, corrections_of(config, model), conversations
    )


def corrections_of(config: RunConfig, model: AdaptedLM) -> Corrections:
    """Return the corrections of a program's predictions that the settings turn on, not fitted yet.

    A correction that does not apply to this program raises a `ConfigError`.
    """
    options = {name: bool(getattr(config.adapter, name)) for name in CORRECTED}
    return Corrections(
        model, **options | ({"calibrated": True} if METHODS[config.method.name].tempered else {})
    )


def count_parameters(module: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def parameter_counts(system: System) -> dict[str, int]:
    """Return the numbers of trainable and of frozen parameters."""
    model, guide = count_parameters(system.model), count_parameters(system.guide)
    frozen = sum(p.numel() for p in system.backbone.lm.parameters())
    return {"model": model, "guide": guide, "trainable": model + guide, "frozen": frozen}
