"""A configuration made real: backbone, task, model and guide."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor, nn

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import CompletionLikelihood, TextLikelihood
from bara_pyro.core.noise import seeded
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.data import (
    EncodedSplit,
    Task,
    answer_token_ids,
    encode_labels,
    is_file_name,
)
from bara_pyro.data.registry import has_worlds
from bara_pyro.data.reply_tasks import ReplyTask, is_reply_task
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import AUTO, load_backbone
from bara_pyro.lm.targets import find_targets
from bara_pyro.methods import METHODS, build
from bara_pyro.parts import remove_parts
from bara_pyro.posthoc.corrections import Corrections
from bara_pyro.runs.by_rows import for_rows, may_rehearse, rehearsal_note
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.fingerprint import states_name
from bara_pyro.runs.halves import rehearsed_halves
from bara_pyro.runs.launched import local_rank
from bara_pyro.runs.memory import check_memory
from bara_pyro.runs.rows import (
    OnRows,
    Replies,
    check_readable,
    encode_reply_split,
    encode_split,
    load_data,
    load_reply_data,
    reading_notes,
)

# Settings of the adapters' section that are of what is fitted to draws (`bara_pyro.posthoc`).
CORRECTED = ("calibrated", "distance_aware", "one_pass")


@dataclass(frozen=True, eq=False, repr=False)
class System:
    """Everything that training and prediction work on.

    Attributes:
        config: the settings.
        backbone: the frozen language model with its tokenizer.
        task: the rows.
        answer_ids: long, `C`: the token of each class; empty where whole texts are scored.
        model, guide: the program and its posterior.
        corrections: what is fitted to their draws once training is over.
        conversations: the rows where replies are learnt; the task then has a name only.
    """

    config: RunConfig
    backbone: Backbone
    task: Task
    answer_ids: Tensor
    model: AdaptedLM
    guide: SiteGuide
    corrections: Corrections
    conversations: ReplyTask | None = None
    _encoded: dict[str, EncodedSplit | Replies] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        trained = count_parameters(self.model) + count_parameters(self.guide)
        return (
            f"System: method {self.config.method.name!r}, {trained:,} trainable parameters\n"
            f"  {self.backbone!r}\n"
            f"  {self.conversations or self.task!r}"
        )

    def split(self, name: str) -> EncodedSplit:
        """Return a split as token ids, encoded once; see `encode_split`.

        Raises:
            ConfigError: replies are learnt, which have no classes.
            DataError: the split is empty, or a question is too long.
        """
        require_answers(self.config)
        return cast(EncodedSplit, self.encoded(name))

    def replies(self, name: str) -> Replies:
        """Return a split of replies as token ids, encoded once; see `encode_reply_split`.

        Raises:
            ConfigError: answers are learnt, not replies.
            DataError: the split is empty, or all its prompts are too long.
        """
        if self.config.task.likelihood != "completion":
            raise ConfigError(
                "This model learns answers, no replies: train with likelihood='completion' "
                "(--likelihood completion)."
            )
        return cast(Replies, self.encoded(name))

    def encoded(self, name: str) -> EncodedSplit | Replies:
        """Return a split, of answers or of replies, as token ids, encoded once."""
        if name not in self._encoded:
            if self.config.task.likelihood == "completion":
                told = self.conversations or ReplyTask(self.task.name)
                self._encoded[name] = encode_reply_split(self.config, self.backbone, told, name)
            else:
                self._encoded[name] = encode_split(self.config, self.backbone, self.task, name)
        return self._encoded[name]

    def with_config(self, config: RunConfig) -> "System":
        """Return the same with settings that say otherwise where its rows are, not which they are."""
        again = replace(self, config=config)
        again._encoded.update(self._encoded)
        return again

    @property
    def has_rows(self) -> bool:
        """Whether there are rows to train on."""
        return bool((self.conversations or self.task).train)


def require_answers(config: RunConfig) -> None:
    """Refuse a model that learns replies where classes are asked for.

    Raises:
        ConfigError: it does.
    """
    if config.task.likelihood == "completion":
        raise ConfigError(
            "This model learns replies, and what is asked for here are answers of a closed set: train with "
            "likelihood='answer' (--likelihood answer)."
        )


def adapter_options(config: RunConfig, rank_pattern: Mapping[str, int] | None = None) -> AdapterOptions:
    """Return what a program is told about its adapters; see `bara_pyro.core.program.AdaptedLM`."""
    options = cast(AdapterOptions, config.adapter.model_dump(exclude=set(CORRECTED)))
    if rank_pattern:
        options["rank_pattern"] = rank_pattern
    if config.task.likelihood == "completion":
        options["likelihood"] = CompletionLikelihood()
    elif config.task.labels == "texts":
        options["likelihood"] = TextLikelihood(mean=config.task.text_score == "mean")
    return options


def states_note(config: RunConfig, backbone: Backbone, split: EncodedSplit | Replies) -> list[str]:
    """Say, where the lowest layers hold no adapter, what keeping their output takes."""
    depth = backbone.frozen_layers(find_targets(backbone.lm, config.adapter.target_modules))
    if not depth:
        return []
    size, folder = backbone.states.size(split.lengths), config.backbone.states_folder
    where = "memory" if folder is None else str(folder)
    note = f"the lowest {depth} layers hold no adapter and run once a row: {size / 2**20:,.0f} MiB in {where}"
    if folder is None and size > backbone.states.budget:
        kept = f"{backbone.states.budget / 2**20:,.0f}"
        note += f", of which {kept} are kept: give states_folder (--states-folder) for all"
    return [note]


def build_system(
    config: RunConfig,
    backbone: Backbone | None = None,
    task: Task | ReplyTask | None = None,
    *,
    on_rows: OnRows | None = None,
) -> System:
    """Load what a configuration names and build model and guide, with initial values from its seed.

    Args:
        config: the settings.
        backbone: an already loaded one, to share between several systems.
        task: an already loaded one.
        on_rows: called with the number of rows just read, where rows are streamed.

    Raises:
        BaraError: a name is unknown, a file unreadable, a label not a single token, or it cannot fit into
            memory.

    Examples:
        >>> from bara_pyro.runs.config import load_config
        >>> from bara_pyro.runs.system import build_system
        >>> system = build_system(load_config(overrides={"method": "lora", "task.limit": 8}))
        >>> type(system.model).__name__, type(system.guide).__name__, len(system.split("train"))
        ('LoRA', 'DeltaGuide', 8)
    """
    _check_labels(config)
    device = find_device(config.backbone.device)
    replies = config.task.likelihood == "completion"
    task = task or (load_reply_data(config) if replies else load_data(config))
    if isinstance(task, ReplyTask) != replies:
        wanted = "answer" if replies else "completion"
        raise ConfigError(f"The rows given are a {type(task).__name__}: set task.likelihood={wanted!r}.")
    if isinstance(task, ReplyTask) or task.columns is not None:
        config = _naming(config, task.name)
    if not task.train:
        raise DataError(f"The task {task.name!r} has no training rows: it serves for evaluation only.")
    if backbone is None:
        backbone = load_backbone(config.backbone.name, dtype=config.backbone.dtype, device=device)
    _check_world(config, backbone, task.name)
    split: EncodedSplit | Replies
    if isinstance(task, ReplyTask):
        split = encode_reply_split(config, backbone, task, "train", on_rows)
    else:
        task = encode_labels(task, backbone.tokenizer, config.task.labels)
        split = encode_split(config, backbone, task, "train")
    check_readable(split, backbone)
    asked = 0
    if isinstance(task, Task) and isinstance(split, EncodedSplit) and may_rehearse(config, len(split)):
        asked = len(rehearsed_halves(task, split, config.seed)[1])
    config = for_rows(config, len(split), asked)
    check_memory(config, backbone, split)
    notes = (
        *reading_notes(config, backbone, split, "train"),
        *states_note(config, backbone, split),
        *rehearsal_note(config, len(split), asked),
    )
    task = replace(task, notes=(*task.notes, *notes))
    system = assemble(config, backbone, task, len(split))
    _check_local_rate(system)
    system._encoded["train"] = split
    return system


def _check_local_rate(system: System) -> None:
    """Refuse a rate of an amortised guide where none is amortised, or the optimiser moves none."""
    c = system.config
    if (scale := c.train.local_lr_scale) is None:
        return
    optim = METHODS[c.method.name].svi(system.model, system.guide, c.train, c.method).optim
    moved = {id(p) for group in optim.param_groups for p in group["params"]}
    if moved.isdisjoint(map(id, system.guide.local_parameters())):
        raise ConfigError(
            f"train.local_lr_scale={scale} (--local-lr-scale) is AdamW's rate of an amortised guide, and "
            f"{c.method.name!r} has none here: leave it out, or train bara, bara-gate, clora or fvae, by the "
            "ELBO."
        )


def _check_labels(config: RunConfig) -> None:
    """Refuse whole texts as answers where an option of the adapters wants one token each."""
    for name in ("distance_aware", "one_pass"):
        if getattr(config.adapter, name) and config.task.labels == "texts":
            raise ConfigError(
                f"{name}=True (--{name.replace('_', '-')}) takes answers of one token, and labels='texts' "
                "(--labels texts) asks for whole texts: give labels='letters' (--labels letters), or leave "
                f"{name} out."
            )


def _check_world(config: RunConfig, backbone: Backbone, task: str) -> None:
    """Refuse questions about another world than the one that a language model was pretrained on."""
    known, asked = backbone.world, config.task.world
    if known is not None and known != asked and has_worlds(task):
        raise ConfigError(
            f"{backbone.name} knows world {known}, and {task!r} asks about world {asked}: give "
            f"task.world={known}, or the language model of world {asked}."
        )


def _naming(config: RunConfig, name: str) -> RunConfig:
    """Return a configuration that does not name other rows than those given in Python, which have a name."""
    c = config.task
    if is_file_name(c.name) or is_reply_task(c.name):
        return config
    return config.model_copy(update={"task": c.model_copy(update={"name": name})})


def assemble(
    config: RunConfig,
    backbone: Backbone,
    task: Task | ReplyTask,
    num_data: int,
    rank_pattern: Mapping[str, int] | None = None,
) -> System:
    """Build model and guide on a loaded backbone, with initial values from the configuration's seed.

    `rank_pattern` is that of a pruned adapter: path of a module -> its rank.
    """
    told = task if isinstance(task, ReplyTask) else None
    asked = Task(task.name, (), notes=task.notes) if isinstance(task, ReplyTask) else task
    asked = encode_labels(asked, backbone.tokenizer, config.task.labels)
    texts = config.task.labels == "texts"
    answer_ids = answer_token_ids(backbone.tokenizer, () if texts else asked.labels)
    backbone.checkpointing = config.train.checkpointing
    if config.backbone.states_folder is not None:
        backbone.states.folder = config.backbone.states_folder / states_name(backbone, config.backbone.dtype)
        remove_parts(backbone.states.folder)
    adapter = adapter_options(config, rank_pattern)
    with seeded(backbone.device, config.seed):
        model, guide = build(config.method, backbone, num_data, adapter)
    return System(config, backbone, asked, answer_ids, model, guide, corrections_of(config, model), told)


def corrections_of(config: RunConfig, model: AdaptedLM) -> Corrections:
    """Return what is fitted to a program's draws once it is trained, as the settings ask for it.

    Raises:
        ConfigError: two temperatures are asked for, or one of its parts is not for this program's answers.
    """
    options = {name: bool(getattr(config.adapter, name)) for name in CORRECTED}
    if METHODS[config.method.name].tempered:
        if options["calibrated"]:
            raise ConfigError(
                "calibrated=True (adapter.calibrated) asks for a temperature, and a method that is about "
                "temperatures fits one of its own: leave it out."
            )
        options["calibrated"] = True
    return Corrections(model, **options)


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
        index = cast("int | None", device.index)  # torch's types leave None out
        if device.type == "cuda" and index is None and (own := local_rank()) is not None:
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
