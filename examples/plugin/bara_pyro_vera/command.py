"""The command `bara vera-scales RUN`. Heavy imports are inside the function to keep `bara --help` fast."""

from bara_pyro.cli.options import Run


def vera_scales(run: Run) -> None:
    """Show the norm of each layer's output scale in a VeRA run, which starts at 0."""
    from bara_pyro import load_system
    from bara_pyro.cli.terminal import result, say
    from bara_pyro.errors import ConfigError

    system = load_system(run, with_rows=False)
    if system.config.method.name != "vera":
        raise ConfigError(f"{run} is a run of {system.config.method.name}: give a run of vera.")
    norms = {one.target.path: one.out_scale.norm().item() for one in system.model.adapters.values()}
    for path, norm in norms.items():
        say(f"{path}: {norm:.3g}")
    result(norms)
