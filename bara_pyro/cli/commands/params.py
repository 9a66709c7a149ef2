"""`bara params`: count parameters."""

from typing import Annotated

import typer

from bara_pyro.cli.options import Set
from bara_pyro.cli.wrap import INSIDE, listed
from bara_pyro.settings import DEFAULT_METHOD


@listed(INSIDE)
def params(
    method: Annotated[
        str | None, typer.Option(help=f"Method; `bara methods` lists them. (default: {DEFAULT_METHOD})")
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="A published architecture, for example qwen2.5-7b. Needs no weights.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Or a model: 'microworld', a local folder or a hub name.")
    ] = None,
    assignments: Set = None,
) -> None:
    """Count a method's trainable parameters."""
    from bara_pyro.cli.catalogue import check_method
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.assignments import check_settings, collect

    if (arch is None) == (model is None):
        raise ConfigError("bara params counts for one model: give either --arch or --model.")
    settings = collect(None, {} if method is None else {"method": method}, assignments or [])
    check_settings(settings)
    if others := sorted(settings.keys() - {"method", "adapter"}):
        raise ConfigError(
            f"--set {others[0]}.{next(iter(settings[others[0]]))} changes no count: give only settings of "
            "method and adapter."
        )
    check_method(settings.get("method"))

    from bara_pyro.cli.architectures import empty_backbone
    from bara_pyro.cli.terminal import result, say_next, show
    from bara_pyro.lm.loading import load_backbone
    from bara_pyro.methods import build
    from bara_pyro.report.table import Column, Table
    from bara_pyro.runs.config import parse_config
    from bara_pyro.runs.system import adapter_options, count_parameters

    config = parse_config(settings)
    backbone = empty_backbone(arch) if arch is not None else load_backbone(model or "")
    program, guide = build(config.method, backbone, 1, adapter_options(config))
    model_count, posterior = count_parameters(program), count_parameters(guide)
    columns = (Column("part", "part"), Column("count", "parameters", format=",d"))
    parts = {
        "adapters (model)": model_count,
        "posteriors (guide)": posterior,
        "trainable": model_count + posterior,
        "frozen": sum(p.numel() for p in backbone.lm.parameters()),
    }
    name = config.method.name
    caption = f"{name} on {arch or model}, r = {config.adapter.r}, {len(program.targets)} modules"
    show(Table(columns, [{"part": part, "count": count} for part, count in parts.items()], caption))
    say_next("bara", "train", "FILE", "--method", name, *([] if model is None else ["--model", model]))
    result({"method": name, "on": arch or model, "modules": len(program.targets), **parts})
