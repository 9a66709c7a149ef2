"""`bara export`: write a run as plain LoRA adapters, for PEFT and for inference servers."""

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
        Literal["lora"], typer.Option("--as", help="lora: plain LoRA in PEFT's format.")
    ] = "lora",
    rows: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_ROWS,
            help="Training rows to fit BaRA's local gates on; as many test rows measure how close the "
            "export is.",
        ),
    ] = 256,
    draws: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_DRAWS,
            help="Draws of Phi, or of TFB's, BLoB's or IVON's weights, one adapter each, in FOLDER/draw-<k>.",
        ),
    ] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, max=MOST_SEED, help="Seed of the draws. (default: the run's)")
    ] = None,
    max_kl: Annotated[
        float,
        typer.Option(
            min=0,
            help="Write nothing if the mean KL divergence from the run to the export exceeds this (nats per "
            "row).",
        ),
    ] = 0.05,
    overwrite: Overwrite = False,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Write a run as plain LoRA, which PEFT and vLLM read without bara_pyro, and measure the difference.

    For methods that are a LoRA at their mean the export is exact. BaRA's gates depend on the token, so its
    export is the nearest LoRA on training rows, with Phi at its mean or at a draw. With `import
    bara_pyro.peft`, PEFT reads a run of BaRA itself.
    """
    from bara_pyro.cli.checks import check_folder, refuse
    from bara_pyro.runs.manifest import check_run

    if not draws:
        refuse(["seed"], "needs --draws: add it")
    check_folder(out, overwrite=overwrite, inputs=[run])
    check_run(run)

    from bara_pyro.cli.terminal import result, say
    from bara_pyro.data import first_rows
    from bara_pyro.errors import ConfigError
    from bara_pyro.extras.hub.export import check_near, nearest_loras
    from bara_pyro.runs.folder import load_system
    from bara_pyro.runs.ownership import clear

    system = load_system(run, backbone=model, device=device)
    if system.config.task.likelihood == "completion":
        raise ConfigError(
            f"{run} was trained on replies, but exports are compared on answers: load the run itself with "
            f"peft.PeftModel.from_pretrained(lm, {str(run)!r}) (docs/peft.md)."
        )
    fitted = first_rows(system.split("train"), rows)
    compared = first_rows(system.split(system.config.task.evaluate_on), rows)
    loras = nearest_loras(system, rows=fitted, compared_on=compared, draws=draws, seed=seed)
    say_report(loras.report)
    check_near(loras.report, max_kl)
    clear(out)
    loras.write(out)
    say(f"Written to {out}")
    result({"out": out, **loras.report})
    say(f"Next: load it in Python with peft.PeftModel.from_pretrained(lm, {str(out)!r})")


def say_report(report: Json) -> None:
    """Print how close plain LoRA is to a run, and the prompt format."""
    from bara_pyro.cli.terminal import say

    for key in ("mean", "draws"):
        if key in report:
            near, of = report[key], "its posterior mean" if key == "mean" else "the average of its draws"
            say(
                f"On {near['rows']} rows, KL from the run at {of} to the export: mean {near['kl_mean']:.4f} "
                f"nats, largest {near['kl_max']:.4f}. NLL of run and export: {near['nll_run']:.4f} and "
                f"{near['nll_export']:.4f}; same answer on {near['same_answer']:.1f} % of the rows."
            )
    if "temperature" in report:
        say(
            f"Divide the answers' logits by the run's temperature, {report['temperature']:.3f}, as was done "
            "here."
        )
    if "distance_aware" in report:
        say(
            "The run's distance-aware uncertainty is not exported: far from the training rows the export "
            "stays as confident as elsewhere."
        )
    say(f"Prompt format ('ask' in export.json has its tokens): {report['ask']['prompt']!r}")
