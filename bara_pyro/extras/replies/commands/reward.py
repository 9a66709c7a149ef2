"""`bara reward`: reward models, which score replies; trained on preference pairs."""

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
        str, of_data(help="'ultrafeedback', or a file of rows with prompt, chosen and rejected.")
    ],
    out: OutFolder,
    data_dir: DataDir = None,
    test_file: Annotated[
        Path | None, of_data(parser=path, help="Pairs to test on, for a task that is your own file.")
    ] = None,
    test_fraction: Annotated[
        float, of_data(help="For a file without --test-file: share of its prompts to test on.")
    ] = 0.2,
    rows: Annotated[int | None, of_data(min=1, help="Train on the first so many pairs only.")] = None,
    max_length: Annotated[
        int | None,
        of_data(
            min=1,
            help="Tokens a row; prompts lose their beginning, longer replies are left out. (default: 1024, "
            "or fewer that the model takes)",
        ),
    ] = None,
    head_only: Annotated[
        bool, typer.Option("--head-only", help="Train the head alone, on features that are computed once.")
    ] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Times that every pair is seen.")] = 2,
    lr: Annotated[
        float | None, typer.Option(help="Rate of AdamW. (default: 1e-4; 1e-3 of the head alone)")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs a step.")] = 8,
    r: Annotated[int, typer.Option("--r", min=1, help="Rank of LoRA.")] = 8,
    weight_decay: Annotated[float, typer.Option(min=0, help="Of AdamW.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the training.")] = 0,
    dtype: DType = "float32",
    device: Device = "cpu",
    overwrite: Overwrite = False,
) -> None:
    """Train a reward model: LoRA and a head, by the likelihood of Bradley and Terry.

    Writes a folder that transformers reads as a sequence classifier, with reward.json: how often it agrees
    with held-out pairs, and how often always taking the longer reply would.
    """
    from bara_pyro.cli.outputs import check_folder
    from bara_pyro.cli.typed import refuse
    from bara_pyro.data.preferences import load_preferences
    from bara_pyro.extras.replies.reward.settings import RewardConfig

    if head_only:
        refuse(["r"], "is of LoRA, and --head-only trains none: leave out --head-only")
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

    from bara_pyro.cli.terminal import result, say, say_notes
    from bara_pyro.extras.replies.reward import train_reward
    from bara_pyro.extras.replies.reward.agreement import Agreement

    with _stages() as on_progress:
        reward = train_reward(model, pairs, out, config, device=device, on_progress=on_progress)
    record = reward.record or {}
    data = record["data"]
    left = data["train_pairs_too_long"] + data["test_pairs_too_long"]
    say_notes([*data["notes"], *([f"{left} pairs left out as too long"] if left else [])])
    say(Agreement(**record["held_out"]).sentence())
    say(f"Written to {out}: `bara reward score {out}` scores replies")
    result({"out": out, **record})


@contextmanager
def _stages() -> Iterator["OnProgress"]:
    """Show one bar after another, each for what is being done."""
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
        typer.Argument(metavar="REWARD", help="A folder of `bara reward train`, or another reward model."),
    ],
    input_file: Annotated[
        Path,
        typer.Option(
            "--input",
            parser=path,
            help="Rows with prompt, and reply or completion; or AlpacaEval's, with instruction and output.",
        ),
    ],
    output: Annotated[Path, typer.Option(parser=path, help="File to write: .jsonl.")],
    overwrite: Overwrite = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows at a time.")] = 8,
    max_length: Annotated[
        int | None,
        of_data(min=1, help="Tokens a row; longer prompts lose their beginning. (default: as in training)"),
    ] = None,
    dtype: DType = "float32",
    device: Device = "cpu",
) -> None:
    """Score replies: rows are kept as they are, with columns `score` (higher is better) and `judge` beside.

    `judge` is the reward model's name with its accuracy on held-out pairs, as `bara best-of-n` shows it.
    """
    from bara_pyro.cli.outputs import check_file
    from bara_pyro.errors import ConfigError, DataError
    from bara_pyro.extras.replies.reward.files import COLUMN, JUDGE, replies_in, scores_in

    if not input_file.is_file():
        raise DataError(f"There is no file {input_file}.")
    inputs = [input_file, *([Path(reward)] if Path(reward).exists() else [])]
    check_file(output, overwrite=overwrite, inputs=inputs, option="--output", ours=scores_in)
    if output.suffix.lower() != ".jsonl":
        raise ConfigError(f"--output {output}: end the name in .jsonl.")
    rows, replies = replies_in(input_file)

    from bara_pyro.cli.terminal import progress, result, say, say_next
    from bara_pyro.extras.replies.reward import load_reward_model, score_replies
    from bara_pyro.extras.replies.reward.agreement import brief, sentence_of
    from bara_pyro.runs.atomic import write_jsonl
    from bara_pyro.runs.fingerprint import fingerprint_of

    judge = load_reward_model(reward, dtype, device)
    with progress(f"score {input_file.name}", len(rows)) as advance:
        scores = score_replies(judge, replies, batch_size=batch_size, max_length=max_length, on_rows=advance)
    name = Path(reward).name if Path(reward).exists() else reward
    told = {**brief(name, judge.held_out), "weights": fingerprint_of(judge.model.state_dict())}
    pairs = zip(rows, scores.tolist(), strict=True)
    write_jsonl(output, [{**row, COLUMN: value, JUDGE: told} for row, value in pairs])
    say(f"{len(rows)} replies scored to {output}")
    if judge.held_out is None:
        say(f"How often {reward} agrees with people is not known: it has no reward.json.")
    else:
        say(f"{reward} {sentence_of(judge.held_out)}")
    result({"output": output, "rows": len(rows), "held_out": judge.held_out})
    say_next("bara", "best-of-n", output)


for command in (train, score):
    add_command(app, command)
