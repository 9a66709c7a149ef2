"""`bara export`: a run as plain LoRA adapters, for PEFT and for servers."""

from typing import Annotated, Literal

import typer

from bara_pyro.cli.options import Moved, OutFolder, Overwrite, Run, RunDevice
from bara_pyro.cli.wrap import SHARE, listed
from bara_pyro.runs.sections import MOST_DRAWS, MOST_ROWS, MOST_SEED
from bara_pyro.types import Json


@listed(SHARE)
def export(
    run: Run,
    out: OutFolder,
    kind: Annotated[
        Literal["lora"], typer.Option("--as", help="lora: plain LoRA, in PEFT's files.")
    ] = "lora",
    rows: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_ROWS,
            help="Training rows whose tokens BaRA's local gates are fitted on; as many test rows say how "
            "near the export is.",
        ),
    ] = 256,
    fit: Annotated[
        Literal["least-squares", "mean"],
        typer.Option(help="BaRA's local gates: the nearest linear map, or (gate form) theta at its mean."),
    ] = "least-squares",
    draws: Annotated[
        int, typer.Option(min=0, max=MOST_DRAWS, help="Draws of Phi, an adapter each, in FOLDER/draw-<k>.")
    ] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, max=MOST_SEED, help="Seed of the draws; the run's own by default.")
    ] = None,
    max_kl: Annotated[
        float,
        typer.Option(
            min=0,
            help="Nats a row, on average, that the export may be away from the run; beyond them nothing is "
            "written.",
        ),
    ] = 0.05,
    overwrite: Overwrite = False,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Say how near plain LoRA, which PEFT and vLLM read without bara_pyro, is to a run, and write it.

    A method that is a LoRA at its mean stays what it is. BaRA's gates depend on the token, which a LoRA's
    weights do not: the export is the LoRA nearest to it on rows, with Phi at its mean or a draw. PEFT reads a
    run of BaRA as it is with `import bara_pyro.peft`.
    """
    from bara_pyro.cli.outputs import check_folder
    from bara_pyro.cli.typed import refuse
    from bara_pyro.runs.manifest import check_run

    if not draws:
        refuse(["seed"], "is of --draws: give that")
    check_folder(out, overwrite=overwrite, inputs=[run])
    check_run(run)

    from bara_pyro.cli.terminal import result, say
    from bara_pyro.data import first_rows
    from bara_pyro.errors import ConfigError
    from bara_pyro.extras.hub.export import check_near, nearest_loras
    from bara_pyro.runs.folder import load_system
    from bara_pyro.runs.ownership import clear

    system = load_system(run, backbone=model, device=device)
    if system.model.gates is None or not system.model.gates.theta:
        refuse(
            ["fit"],
            f"is of local gates, which {system.config.method.name} has not: export a run of bara-gate",
        )
    if system.config.task.likelihood == "completion":
        raise ConfigError(
            f"{run} learnt replies, and what an export is near to is measured on answers: PEFT reads the run "
            f"itself, peft.PeftModel.from_pretrained(lm, {str(run)!r}), as docs/peft.md says of each method."
        )
    fitted = first_rows(system.split("train"), rows)
    compared = first_rows(system.split(system.config.task.evaluate_on), rows)
    found = nearest_loras(system, rows=fitted, compared_on=compared, fit=fit, draws=draws, seed=seed)
    say_report(found.report)
    check_near(found.report, max_kl)
    clear(out)
    found.write(out)
    say(f"Written to {out}: peft.PeftModel.from_pretrained(lm, {str(out)!r}) reads it")
    result({"out": out, **found.report})


def say_report(report: Json) -> None:
    """Say how near plain LoRA is to a run, and how it is asked."""
    from bara_pyro.cli.terminal import say

    for key in ("mean", "draws"):
        if key in report:
            near, of = report[key], "its posterior mean" if key == "mean" else "the average of its draws"
            say(
                f"KL from the run at {of} to the export, {near['rows']} rows: {near['kl_mean']:.4f} nats on "
                f"average, {near['kl_max']:.4f} at most; NLL {near['nll_run']:.4f} and "
                f"{near['nll_export']:.4f}; the same answer in {near['same_answer']:.1f} %."
            )
    if "temperature" in report:
        say(
            f"Divide the answers' logits by {report['temperature']:.3f}, as the run does and as is done here."
        )
    if "distance_aware" in report:
        say(
            "Far from its training rows the run's answers have noise, which no LoRA has: this one is as sure "
            "there as elsewhere."
        )
    say(f"Prompt to send ('ask' in export.json has its tokens): {report['ask']['prompt']!r}")
