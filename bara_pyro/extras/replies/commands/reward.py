"""`bara reward`: train reward models on preference pairs, and score replies with them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bara_pyro.cli.options import DataDir, OutFolder, Overwrite, of_data, of_model, path
from bara_pyro.cli.wrap import TEXT, add_command, group, listed
from bara_pyro.runs.sections import MOST_SEED
from bara_pyro.types import FloatType

if TYPE_CHECKING:
    from bara_pyro.extras.replies.reward.training import OnProgress

app = group("Reward models: train one on preference pairs, score replies.", TEXT)
DType = Annotated[FloatType, of_model(help="Type of the frozen weights.")]
Device = Annotated[str, of_model(help="cpu, cuda, cuda:1 or mps.")]


@listed(
    TEXT,
    *("model", "task", "out", "overwrite", "rows", "head_only", "epochs", "lr", "batch_size", "seed"),
    "device",
)
def train(
    model: Annotated[
        str, of_model("--model", help="Causal language model: a local Hugging Face folder, or a hub name.")
    ],
    task: Annotated[
        str, of_data(help="'ultrafeedback', or a file with columns prompt, chosen and rejected.")
    ],
    out: OutFolder,
    data_dir: DataDir = None,
    test_file: Annotated[
        Path | None, of_data(parser=path, help="Pairs to test on, if the task is your own file.")
    ] = None,
    test_fraction: Annotated[
        float, of_data(help="Share of a file's prompts to test on, without --test-file.")
    ] = 0.2,
    rows: Annotated[int | None, of_data(min=1, help="Train on the first N pairs only.")] = None,
    max_length: Annotated[
        int | None,
        of_data(
            min=1,
            help="Most tokens per row; longer prompts lose their beginning, longer replies are left out. "
            "(default: 1024, or the model's own limit if lower)",
        ),
    ] = None,
    head_only: Annotated[
        bool, typer.Option("--head-only", help="Train only the head, on features computed once.")
    ] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs.")] = 2,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate of AdamW. (default: 1e-4; 1e-3 with --head-only)")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs per step.")] = 8,
    r: Annotated[int, typer.Option("--r", min=1, help="Rank of LoRA.")] = 8,
    weight_decay: Annotated[float, typer.Option(min=0, help="Weight decay of AdamW.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the training.")] = 0,
    dtype: DType = "float32",
    device: Device = "cpu",
    overwrite: Overwrite = False,
) -> None:
    """Train a reward model: LoRA and a head, by the Bradley-Terry likelihood.

    Writes a folder that transformers reads as a sequence classifier. Its reward.json holds the accuracy on
    held-out pairs, and that of always preferring the longer reply.
    """
    from bara_pyro.cli.outputs import check_folder
    from bara_pyro.cli.typed import refuse
    from bara_pyro.data.preferences import load_preferences
    from bara_pyro.extras.replies.reward.settings import RewardConfig

    if head_only:
        refuse(["r"], "is the rank of LoRA, which --head-only does not train: leave out one of them")
    inputs = [place for place in (Path(model), Path(task), data_dir, test_file) if place and place.exists()]
    check_folder(out, overwrite=overwrite, inputs=inputs)
    config = RewardConfig(
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        max_length=max_length,
        head_only=head_only,
        r=r,
        lora_alpha=2.0 * r,
        weight_decay=weight_decay,
        dtype=dtype,
        seed=seed,
    )
    pairs = load_preferences(task, data_dir, test_file=test_file, test_fraction=test_fraction, rows=rows)

    from bara_pyro.cli.terminal import result, say, say_next, say_notes
    from bara_pyro.extras.replies.reward import train_reward
    from bara_pyro.extras.replies.reward.agreement import sentence_of

    with _stages() as on_progress:
        reward = train_reward(model, pairs, out, config, device=device, on_progress=on_progress)
    record = reward.record or {}
    data = record["data"]
    left = data["train_pairs_too_long"] + data["test_pairs_too_long"]
    say_notes([*data["notes"], *([f"{left} pairs left out as too long"] if left else [])])
    say(sentence_of(record["held_out"]))
    say(f"Written to {out}")
    result({"out": out, **record})
    say_next("bara", "reward", "score", out, "--input", "replies.jsonl", "--output", "scored.jsonl")


@contextmanager
def _stages() -> Iterator["OnProgress"]:
    """Show a progress bar for each stage in turn."""
    from bara_pyro.cli.terminal import Advance, progress

    shown: dict[str, Advance] = {}
    with ExitStack() as stack:

        def on_progress(stage: str, done: int, total: int, note: str) -> None:
            if stage not in shown:
                stack.close()
                shown[stage] = stack.enter_context(progress(stage, total))
            shown[stage](completed=done, note=note)

        yield on_progress


def score(
    reward: Annotated[
        str,
        typer.Argument(metavar="REWARD", help="Folder from `bara reward train`, or another reward model."),
    ],
    input_file: Annotated[
        Path,
        typer.Option(
            "--input",
            parser=path,
            help="Rows with prompt and reply (or completion), or AlpacaEval's instruction and output.",
        ),
    ],
    output: Annotated[Path, typer.Option(parser=path, help="File to write: .jsonl.")],
    overwrite: Overwrite = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per batch.")] = 8,
    max_length: Annotated[
        int | None,
        of_data(
            min=1, help="Most tokens per row; longer prompts lose their beginning. (default: as in training)"
        ),
    ] = None,
    dtype: DType = "float32",
    device: Device = "cpu",
) -> None:
    """Score replies: adds the columns `score` (higher is better) and `judge` to each row.

    `judge` holds the reward model's name and its accuracy on held-out pairs, which `bara best-of-n` shows.
    """
    from bara_pyro.cli.outputs import check_file
    from bara_pyro.errors import ConfigError, DataError
    from bara_pyro.extras.replies.reward.files import COLUMN, JUDGE, replies_in, scores_in

    if not input_file.is_file():
        raise DataError(f"There is no file {input_file}: check the path.")
    inputs = [input_file, *([Path(reward)] if Path(reward).exists() else [])]
    check_file(output, overwrite=overwrite, inputs=inputs, option="--output", ours=scores_in)
    if output.suffix.lower() != ".jsonl":
        raise ConfigError(f"--output {output} does not end in .jsonl: rename it.")
    rows, replies = replies_in(input_file)

    from bara_pyro.atomic import write_jsonl
    from bara_pyro.cli.terminal import progress, result, say, say_next
    from bara_pyro.extras.replies.reward import load_reward_model, score_replies
    from bara_pyro.extras.replies.reward.agreement import brief, sentence_of
    from bara_pyro.lm.verifying import fingerprint_of

    judge = load_reward_model(reward, dtype, device)
    with progress(f"score {input_file.name}", len(rows)) as advance:
        scores = score_replies(judge, replies, batch_size=batch_size, max_length=max_length, on_rows=advance)
    name = Path(reward).name if Path(reward).exists() else reward
    stamp = {**brief(name, judge.held_out), "weights": fingerprint_of(judge.model.state_dict())}
    pairs = zip(rows, scores.tolist(), strict=True)
    write_jsonl(output, [{**row, COLUMN: value, JUDGE: stamp} for row, value in pairs])
    say(f"{len(rows)} replies scored, written to {output}")
    if judge.held_out is None:
        say(f"The accuracy of {reward} on human preferences is unknown: it has no reward.json.")
    else:
        say(f"{reward} {sentence_of(judge.held_out)}")
    result({"output": output, "rows": len(rows), "held_out": judge.held_out})
    say_next("bara", "best-of-n", output)


for command in (train, score):
    add_command(app, command)
