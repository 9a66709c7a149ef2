"""`train_reward`: train a reward model on preference pairs."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bara_pyro.atomic import appearing, write_json, writing
from bara_pyro.data.preferences import PreferencePair, PreferenceTask
from bara_pyro.data.tokens import Tokenizer
from bara_pyro.errors import BackboneError, ConfigError, DataError, Stopped
from bara_pyro.extras.replies.reward.agreement import Agreement, agreement
from bara_pyro.extras.replies.reward.fitting import LastEpoch, PairRows, fit_head, fit_lora, head_of
from bara_pyro.extras.replies.reward.model import (
    HEAD,
    RECORD,
    RewardModel,
    float_head,
    format_of,
    load_classifier,
    load_reward_model,
    token_limit,
)
from bara_pyro.extras.replies.reward.rows import row_of
from bara_pyro.extras.replies.reward.scoring import check_length, scores_of_rows
from bara_pyro.extras.replies.reward.settings import RewardConfig
from bara_pyro.lm.loading import quiet_transformers
from bara_pyro.runs.manifest import record_files
from bara_pyro.runs.ownership import discard, foreign
from bara_pyro.types import Json
from bara_pyro.untrusted.schemas import SCHEMA

TRAINED_LENGTH = 1024  # default limit of a row in tokens

OnProgress = Callable[[str, int, int, str], object]
"""Called with the stage, the steps done, the total number of steps, and a note."""
BATCH = 4
"""Rows per batch when scoring held-out pairs."""


def train_reward(
    name: str | Path,
    task: PreferenceTask,
    out: str | Path,
    config: RewardConfig | None = None,
    *,
    device: str = "cpu",
    on_progress: OnProgress | None = None,
) -> RewardModel:
    """Train a reward model on preference pairs, write it to a folder and return it.

    The loss is the Bradley-Terry loss. The head starts at zero (first loss log 2), unless `name` is already a
    reward model, which is then trained further. Trained adapters are merged into the weights.

    `out` becomes a Hugging Face folder for `AutoModelForSequenceClassification`, with the data, settings and
    accuracy on held-out pairs in `reward.json`. It appears whole or not at all; earlier output of bara in it
    is replaced at the end.

    Args:
        name: a causal language model: a local Hugging Face folder, a hub name, or "microworld".
        task: pairs to train and test on. Pairs with a reply longer than `config.max_length` are left out and
            counted.
        out: folder to write; it must not exist, be empty, or be written by bara.
        config: the settings, or None for the defaults.
        device: device to train on.
        on_progress: called with the progress of each stage.

    Raises:
        BackboneError: the language model cannot be read, lacks weights other than a head, or is not causal.
        ConfigError: the device or type is unknown, the model cannot read that many tokens, or `out` holds
            other files.
        DataError: no pair is left to train or test on, or a row cannot be tokenized.
        TrainingError: the loss is not finite.
        CheckpointError: the folder cannot be written.
        Stopped: Ctrl-C or SIGTERM; nothing has been written.

    Examples:
        >>> from pathlib import Path
        >>> from bara_pyro.data.preferences import Pair, PreferenceTask
        >>> from bara_pyro.extras.replies.reward import RewardConfig, train_reward
        >>> pairs = [Pair(f"in {time}", " he keeps goats .", " no .", time) for time in ("spring", "winter")]
        >>> task = PreferenceTask("mine", train=pairs[:1], test=pairs[1:])
        >>> config = RewardConfig(epochs=20, max_length=32, head_only=True)
        >>> reward = train_reward("microworld", task, "judge", config)
        >>> reward.held_out["accuracy"], (Path("judge") / "model.safetensors").exists()
        (100.0, True)
    """
    config = config or RewardConfig()
    say = on_progress or (lambda *_: None)
    out = Path(out)
    _check_free(out)
    try:
        began = time.perf_counter()
        reward = start(name, config, device)
        length = check_length(reward, config.max_length)
        config = replace(config, max_length=length)
        train, train_rows = _rows(reward, task.train, length, "train")
        test, test_rows = _rows(reward, task.test, length, "test")
        pad_apart(reward, [row for pair in (*train_rows, *test_rows) for row in pair])
        fitted = _fit(reward, train_rows, config, say)
        with writing(out), appearing(out) as folder:
            head_of(reward).to(reward.model.dtype)
            with quiet_transformers():
                reward.model.save_pretrained(folder)
                reward.tokenizer.save_pretrained(folder)
            held_out = _held_out(load_reward_model(folder, config.dtype, device), test, test_rows, say)
            record = _record(name, task, (train, test), config, reward.format, fitted, held_out)
            write_json(folder / RECORD, {**record, "seconds": round(time.perf_counter() - began, 1)})
            record_files(folder, *os.listdir(folder))
            discard(out)
    except KeyboardInterrupt as stop:
        code = stop.code if isinstance(stop, Stopped) else Stopped.code
        raise Stopped(f"Stopped: nothing was written to {out}.", code - 128) from stop
    return load_reward_model(out, config.dtype, device)


def _check_free(out: Path) -> None:
    """Raise an error if the folder cannot be written there."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file: choose a folder.")
    if (stranger := foreign(out)) is not None:
        raise ConfigError(f"{stranger} was not written by bara, or was changed since: choose another folder.")


def start(name: str | Path, config: RewardConfig, device: str) -> RewardModel:
    """Load a language model with a head of zeros, or a reward model with its own head.

    Raises:
        BackboneError: the model cannot be read, lacks weights other than a head, or is not causal.
        ConfigError: the device or type is unknown.
    """
    model, tokenizer, missing = load_classifier(name, config.dtype, device)
    length = config.max_length or token_limit(model, TRAINED_LENGTH)
    reward = RewardModel(model, tokenizer, str(name), format_of(tokenizer), length)
    head = head_of(reward)
    if lacking := [key for key in missing if not key.startswith(f"{HEAD}.")]:
        raise BackboneError(
            f"The file of {str(name)!r} lacks {lacking[0]!r}, which would be random: give a causal "
            "language model."
        )
    if missing:
        torch.nn.init.zeros_(head.weight)
    float_head(model)
    return reward


def _rows(
    reward: RewardModel, pairs: Sequence[PreferencePair], max_length: int, kind: str
) -> tuple[list[PreferencePair], list[PairRows]]:
    """Return the pairs that fit `max_length`, and their tokens."""
    fitting: list[PreferencePair] = []
    rows: list[PairRows] = []
    for pair in pairs:
        chosen, rejected = (
            row_of(side, reward.tokenizer, reward.format, max_length) for side in pair.sides()
        )
        if chosen is not None and rejected is not None:
            fitting.append(pair)
            rows.append((chosen, rejected))
    if not fitting:
        raise DataError(
            f"All {len(pairs)} {kind} pairs have a reply of more than {max_length} tokens: raise max_length "
            "(--max-length)."
        )
    return fitting, rows


def pad_apart(reward: RewardModel, rows: Sequence[Sequence[int]]) -> None:
    """Choose a padding token that no row ends with.

    transformers reads the score at the last token that is not padding, which would be too early in rows that
    end with the padding token. Many tokenizers pad with the end-of-text token.

    Raises:
        BackboneError: every special token of the tokenizer ends a row.
    """
    ends = {row[-1] for row in rows}
    tokenizer: Tokenizer = reward.tokenizer
    config = reward.model.config.get_text_config()
    known = (config.pad_token_id, tokenizer.pad_token_id, *tokenizer.all_special_ids)
    free = next((token for token in known if token is not None and token not in ends), None)
    if free is None:
        raise BackboneError(
            f"The tokenizer of {reward.name} needs a padding token that no reply ends with: add one to it."
        )
    config.pad_token_id = reward.model.config.pad_token_id = free
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(free)


def _fit(reward: RewardModel, rows: Sequence[PairRows], config: RewardConfig, say: OnProgress) -> LastEpoch:
    steps = config.steps(len(rows))
    read = 0

    def on_step(done: int, loss: float) -> None:
        say("train", done, steps, f"loss {loss:.3f}")

    def on_rows(count: int) -> None:
        nonlocal read
        read += count
        say("features", read, 2 * len(rows), "")

    if config.head_only:
        return fit_head(reward, rows, config, on_step, on_rows)
    return fit_lora(reward, rows, config, on_step)


def _held_out(
    reward: RewardModel, pairs: Sequence[PreferencePair], rows: Sequence[PairRows], say: OnProgress
) -> Agreement:
    """Score held-out pairs with the saved model, because merging and its dtype round the weights."""
    both = [row for pair in rows for row in pair]
    done = 0

    def on_rows(count: int) -> None:
        nonlocal done
        done += count
        say("test", done, len(both), "")

    scores = scores_of_rows(reward, both, BATCH, on_rows)
    return agreement(scores[0::2], scores[1::2], pairs)


def _record(
    name: str | Path,
    task: PreferenceTask,
    pairs: tuple[Sequence[PreferencePair], Sequence[PreferencePair]],
    config: RewardConfig,
    form: str,
    fitted: LastEpoch,
    held_out: Agreement,
) -> Json:
    """Return the content of `reward.json`; rates are in percent."""
    train, test = pairs
    return {
        "schema": SCHEMA,
        "language_model": str(name),
        "format": form,
        "max_length": config.max_length,
        "held_out": asdict(held_out),
        "last_epoch": asdict(fitted),
        "data": {
            "task": task.name,
            "train_pairs": len(train),
            "test_pairs": len(test),
            "train_pairs_too_long": len(task.train) - len(train),
            "test_pairs_too_long": len(task.test) - len(test),
            "notes": list(task.notes),
        },
        "config": {**asdict(config), "lr": config.rate},
    }
