"""`bara`: train, evaluate and predict from the command line."""

import sys

import typer

from bara_pyro.cli.commands import microworld
from bara_pyro.cli.commands.demo import demo
from bara_pyro.cli.commands.evaluate import evaluate
from bara_pyro.cli.commands.inspect import inspect
from bara_pyro.cli.commands.methods import methods
from bara_pyro.cli.commands.params import params
from bara_pyro.cli.commands.predict import predict
from bara_pyro.cli.commands.prune import prune
from bara_pyro.cli.commands.tasks import tasks
from bara_pyro.cli.commands.train import train
from bara_pyro.errors import BaraError

app = typer.Typer(
    help="Fine-tune language models with calibrated uncertainty: BaRA and its rivals as Pyro programs.",
    epilog="Start with: bara demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (train, evaluate, predict, inspect, prune, params, methods, tasks, demo):
    app.command()(command)
app.add_typer(microworld.app, name="microworld")


def main() -> None:
    """Run the command line; a mistake of the user's is one sentence on stderr and exit code 2."""
    try:
        app(prog_name="bara")
    except BaraError as error:
        typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
