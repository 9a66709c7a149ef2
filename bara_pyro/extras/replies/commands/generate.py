"""`bara generate`: write replies to prompts with a run."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import (
    SAMPLING,
    Draws,
    MaxNewTokens,
    MemoryBudget,
    Moved,
    Overwrite,
    Run,
    RunDevice,
    Seed,
    Temperature,
    TopK,
    TopP,
    path,
)
from bara_pyro.cli.wrap import TEXT, listed
from bara_pyro.runs.sections import MOST_DRAWS
from bara_pyro.types import Json


@listed(
    TEXT,
    *("input_file", "prompt", "output", "overwrite", "replies", "draws", "uncertainty", "page"),
    *("temperature", "max_new_tokens", "seed", "device"),
)
def generate(
    run: Run,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            parser=path,
            help="File of prompts, one per row, in a column messages, prompt, instruction or question.",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="A prompt, instead of --input; repeat for several.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(parser=path, help="File to write, .jsonl. (default: print the replies)")
    ] = None,
    overwrite: Overwrite = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the --output of an interrupted command.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put plain prompts through the model's chat template.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N prompts.")] = None,
    replies: Annotated[int, typer.Option(min=1, max=MOST_DRAWS, help="Replies per prompt.")] = 1,
    draws: Draws = "each",
    mixture: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_DRAWS,
            help="Sample tokens from the average distribution of this many draws instead.",
        ),
    ] = None,
    mean_theta: Annotated[
        bool,
        typer.Option("--mean-theta", help="Keep local gates at their mean, given the draw of global gates."),
    ] = False,
    uncertainty: Annotated[
        int,
        typer.Option(min=0, max=MOST_DRAWS, help="Draws for each token's uncertainty; 0 for none."),
    ] = 0,
    page: Annotated[
        Path | None,
        typer.Option(
            parser=path, help="Web page to write, .html: the replies with tokens coloured by uncertainty."
        ),
    ] = None,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    max_new_tokens: MaxNewTokens = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="A text that ends a reply; repeat for several.", rich_help_panel=SAMPLING),
    ] = None,
    seed: Seed = 0,
    memory_budget: MemoryBudget = None,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Write replies to prompts, each with one posterior draw for the whole reply.

    A reply depends only on its prompt, its number and --seed. With --uncertainty each token has its total,
    aleatoric and epistemic uncertainty in nats, estimated with separate draws.
    """
    from bara_pyro.cli.checks import check_file, check_overwrite, note_of_draws, refuse
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.answers import holds_replies, reply_page_in
    from bara_pyro.runs.manifest import check_run

    check_overwrite(output, page)
    _check_prompts(input_file, prompt)
    if resume and (overwrite or output is None):
        raise ConfigError(
            "--resume continues the file given as --output: give --output, without --overwrite."
        )
    if page is not None and not uncertainty:
        raise ConfigError("--page colours tokens by their uncertainty: add for example --uncertainty 10.")
    inputs = [run] if input_file is None else [input_file, run]
    for name, out, ending, ours, resumes in (
        ("--output", output, ".jsonl", holds_replies, True),
        ("--page", page, ".html", reply_page_in, False),
    ):
        if out is None:
            continue
        if out.suffix.lower() != ending:
            raise ConfigError(f"{name} {out} does not end in {ending}: rename it.")
        replaced = overwrite or resume
        check_file(out, overwrite=replaced, inputs=inputs, option=name, ours=ours, resumes=resumes)
    check_run(run)

    from bara_pyro.cli.options import draws_of
    from bara_pyro.cli.terminal import progress, result, say, say_next, say_notes
    from bara_pyro.data.tokens import unknown_share
    from bara_pyro.extras.replies.generation.decoding import Decoding
    from bara_pyro.extras.replies.generation.file import append_lines, lines_there, made_by, reply_lines
    from bara_pyro.extras.replies.generation.prompts import encode_prompts, load_prompts
    from bara_pyro.runs.folder import load_system
    from bara_pyro.runs.rows import unknown_note
    from bara_pyro.untrusted.files import read_jsonl

    how = Decoding(
        draws=draws_of(draws),
        fresh_theta=not mean_theta,
        mixture=mixture,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        stop=tuple(stop or ()),
        seed=seed,
    )
    if how.draws == "mean" and not (temperature or uncertainty or mixture):
        refuse(["seed"], "has no effect with --draws mean --temperature 0: change one of them")
    system = load_system(run, backbone=model, device=device, with_rows=False)
    note_of_draws(
        system,
        draws=draws != "mean",
        mixture=mixture,
        mean_theta=mean_theta,
        uncertainty=uncertainty,
    )
    ids, texts = load_prompts(input_file) if input_file is not None else ([], [*(prompt or [])])
    ids, texts = ids[:limit], texts[:limit]
    encoded = encode_prompts(texts, system.backbone.tokenizer, chat=chat or system.config.task.chat, ids=ids)
    prompts = list(zip(encoded, texts, strict=True))
    share = unknown_share([prompt.token_ids for prompt in encoded], system.backbone.tokenizer)
    say_notes(unknown_note(share, "prompts"))
    there: list[Json] = []
    if output is not None and resume:
        there = lines_there(output, made_by(system, how, uncertainty), prompts)
    # The number of distinct draws: an ensemble has its members, a point estimate has one.
    judges = system.model.members or (uncertainty if system.guide.stochastic else 1)
    lines = reply_lines(
        system,
        prompts,
        how,
        replies=replies,
        uncertainty=uncertainty,
        skip={(row["id"], row["number"]) for row in there},
        memory_budget=memory_budget,
    )
    if output is None:
        rows = list(lines)
        for row in rows:
            say(f"[{row['id']}, {row['number']}] {row['reply']}")
        if page is not None:
            _write_page(rows, page, run, judges)
        result(rows)
        return
    with progress("generate", len(encoded) * replies) as advance:
        advance(len(there))
        count = append_lines(output, there, lines, advance)
    written = count - len(there)
    say(f"{written} replies written to {output}" + (f", which had {len(there)} before" if there else ""))
    if page is not None:
        _write_page(read_jsonl(output), page, run, judges)
    result(
        {"output": output, "replies": count, "written": written}
        | ({"page": page} if page is not None else {})
    )
    say_next("bara", "reward", "score", "JUDGE", "--input", output, "--output", "scored.jsonl")


def _check_prompts(file: Path | None, prompts: list[str] | None) -> None:
    """Raise an error if prompts are missing, given in both ways, or in a file that does not exist."""
    from bara_pyro.errors import ConfigError
    from bara_pyro.untrusted.files import require_file

    if file is None and not prompts:
        raise ConfigError("There are no prompts: give a file with --input, or a prompt with --prompt.")
    if file is not None and prompts:
        raise ConfigError(f"--input {file} and --prompt both give prompts: leave one of them out.")
    if file is not None:
        require_file(file)


def _write_page(rows: list[Json], page: Path, run: Path, draws: int) -> None:
    from bara_pyro.cli.terminal import say
    from bara_pyro.extras.replies.generation.page import write_reply_page

    write_reply_page(rows, page, f"Replies of {run.resolve().name}", draws=draws)
    say(f"Page written to {page}")
