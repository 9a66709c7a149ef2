"""`bara methods`: the list of methods."""


def methods() -> None:
    """List the methods."""
    from bara_pyro.cli.terminal import show
    from bara_pyro.methods import METHODS
    from bara_pyro.report.table import Column, Table

    columns = (Column("name", "method"), Column("summary", "what it is"))
    show(Table(columns, [{"name": m.name, "summary": m.summary} for m in METHODS.values()]))
