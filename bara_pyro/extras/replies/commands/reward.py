"""`bara reward`: score replies with a reward model."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import Overwrite, of_data, of_model, path
from bara_pyro.cli.wrap import TEXT, add_command, group
from bara_pyro.errors import ConfigError
from bara_pyro.types import FloatType

app = group("Score replies with a reward model.", TEXT)
DType = Annotated[FloatType, of_model(help="Type of the frozen weights.")]
Device = Annotated[str, of_model(help="cpu, cuda, cuda:1 or mps.")]


def score(
    reward: Annotated[
        str,
        typer.Argument(metavar="REWARD", help="Reward model: a local Hugging Face folder, or a hub name."),
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
            min=1,
            help="Most tokens per row; longer prompts lose their beginning. (default: 2048, or the model's "
            "own limit if lower)",
        ),
    ] = None,
    dtype: DType = "float32",
    device: Device = "cpu",
) -> None:
    """Score replies: adds the columns `score` (higher is better) and `judge` to each row.

    `judge` holds the reward model's name and a hash of its weights: `bara best-of-n` refuses scores of two
    judges.
    """
    from bara_pyro.cli.checks import check_file
    from bara_pyro.extras.replies.reward.files import COLUMN, JUDGE, replies_in, scores_in
    from bara_pyro.untrusted.files import require_file

    require_file(input_file)
    inputs = [input_file, *([Path(reward)] if Path(reward).exists() else [])]
    check_file(output, overwrite=overwrite, inputs=inputs, option="--output", ours=scores_in)
    if output.suffix.lower() != ".jsonl":
        raise ConfigError(f"--output {output} does not end in .jsonl: rename it.")
    rows, replies = replies_in(input_file)

    from bara_pyro.atomic import write_jsonl
    from bara_pyro.cli.terminal import progress, result, say, say_next
    from bara_pyro.extras.replies.reward import load_reward_model, score_replies
    from bara_pyro.lm.verifying import fingerprint_of

    judge = load_reward_model(reward, dtype, device)
    with progress(f"score {input_file.name}", len(rows)) as advance:
        scores = score_replies(judge, replies, batch_size=batch_size, max_length=max_length, on_rows=advance)
    name = Path(reward).name if Path(reward).exists() else reward
    stamp = {"name": name, "weights": fingerprint_of(judge.model.state_dict())}
    pairs = zip(rows, scores.tolist(), strict=True)
    write_jsonl(output, [{**row, COLUMN: value, JUDGE: stamp} for row, value in pairs])
    say(f"{len(rows)} replies scored, written to {output}")
    result({"output": output, "rows": len(rows)})
    say_next("bara", "best-of-n", output)


add_command(app, score)
