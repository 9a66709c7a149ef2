"""`bara`: train, evaluate and predict from the command line."""

import atexit
import errno
import gc
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, cast

import typer
from pydantic import ValidationError

from bara_pyro import __version__
from bara_pyro.cli import terminal
from bara_pyro.cli.commands.compare import compare
from bara_pyro.cli.commands.decide import abstain, conformal, detect
from bara_pyro.cli.commands.demo import demo, microworld
from bara_pyro.cli.commands.evaluate import evaluate
from bara_pyro.cli.commands.inspect import inspect
from bara_pyro.cli.commands.params import params
from bara_pyro.cli.commands.predict import predict
from bara_pyro.cli.commands.tasks import methods, tasks
from bara_pyro.cli.commands.train import train
from bara_pyro.cli.terminal import hush_libraries, outlast_readers
from bara_pyro.cli.wrap import PLUG_INS, STUDY, TRAIN, Command, Group, add_command, group_of, listed
from bara_pyro.errors import BaraError, ConfigError, abbreviated
from bara_pyro.moved import COMMANDS
from bara_pyro.registry import Registry

OFFERED: Registry[Command | typer.Typer] = Registry(
    "command", "bara_pyro.commands", of=cast(type[object], Callable)
)
ORDER: Final = (
    *("demo", "train", "predict", "evaluate", "compare", "tasks", "methods"),  # train and evaluate
    *("abstain", "conformal", "detect", "acquire"),  # decide
    *("generate", "best-of-n", "reward"),  # text
    *("serve", "export", "push", "backbone"),  # share
    *("inspect", "params"),  # look inside
    *("humaneval", "lm-eval", "microworld"),  # study
)
"""The commands of this distribution in the order of `bara --help`, group by group; plug-ins follow."""
NOT_AVAILABLE: Final = "Not available"
"""The heading over commands that cannot be imported."""


class Commands(Group):
    """`bara`: its own commands and those that packages offer."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = cast(dict[str, Any], Offered(self.commands))


class Offered(Mapping[str, Any]):
    """Commands by name, each made when it is looked up; `own` have no entry point."""

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._made = dict(own)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*ORDER, *self._made, *sorted(OFFERED))))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            if name not in (*self,):
                raise KeyError(name)
            self._made[name] = _made(name)
        return self._made[name]


def _made(name: str) -> Any:
    """Return a command as click reads it; one that cannot be imported says why."""
    if name not in OFFERED:
        return _refusing(
            name,
            f"The installed bara-pyro is older than the command {name}: install it again, in a checkout with "
            "`pip install -e .`.",
        )
    app = typer.Typer(pretty_exceptions_enable=False)
    try:
        offered = OFFERED[name]
        if isinstance(offered, typer.Typer):
            panel = offered.rich_help_panel
            app.add_typer(offered, name=name, rich_help_panel=panel if isinstance(panel, str) else PLUG_INS)
        else:
            add_command(app, offered, name, panel=group_of(offered))
        return typer.main.get_group(app).commands[name]
    except ConfigError as error:
        return _refusing(name, str(error))
    except Exception as error:  # noqa: BLE001 - typer's, of whatever somebody else's function takes
        return _refusing(
            name, f"The command {name!r} cannot be read ({error}): mend or uninstall its package."
        )


def _refusing(name: str, sentence: str) -> Any:
    """Return a command that takes anything and says why it is not available."""

    def refuse(context: typer.Context) -> None:
        raise ConfigError(sentence)

    app = typer.Typer(pretty_exceptions_enable=False)
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=sentence, context_settings=anything, rich_help_panel=NOT_AVAILABLE)(refuse)
    return typer.main.get_group(app).commands[name]


ABOUT: Final = "Fine-tune language models with calibrated uncertainty, by BaRA, LoRA or another method."
app = typer.Typer(
    cls=Commands,
    help=ABOUT,
    epilog="Start with `bara demo`, or with `bara train FILE` on your own file.",
    pretty_exceptions_enable=False,
)
for command in (
    *(train, evaluate, compare, predict, conformal, abstain, detect, inspect),
    *(params, methods, tasks, listed(TRAIN)(demo)),
):
    add_command(app, command, panel=group_of(command))
app.add_typer(microworld, name="microworld", rich_help_panel=STUDY)
# Typer's message on a wrong value of a list of one: it is not one of 'lora'.
ONE_VALUE = re.compile(r"('[^']*') is not one of ('[^',]*')\.?$")
UNKNOWN = re.compile(r"No such command '(.*)'\.")
# The names of options in other programs -> in this one.
SYNONYMS = {
    **dict.fromkeys(("--rank", "--lora-r", "--lora-rank"), "--r"),
    **dict.fromkeys(("--learning-rate", "--rate"), "--lr"),
    **dict.fromkeys(("--alpha",), "--lora-alpha"),
    **dict.fromkeys(("--num-epochs", "--num-train-epochs", "--epoch"), "--epochs"),
    **dict.fromkeys(("--max-steps", "--num-steps", "--iterations"), "--steps"),
    **dict.fromkeys(("--batch", "--per-device-train-batch-size", "--train-batch-size"), "--batch-size"),
    **dict.fromkeys(("--gradient-accumulation-steps", "--grad-accum"), "--accumulate"),
    **dict.fromkeys(("--output-dir", "--out-dir", "--save-dir"), "--out"),
    **dict.fromkeys(("--dataset", "--data", "--file", "--train-file", "--csv"), "--task"),
    **dict.fromkeys(("--model-name", "--model-name-or-path", "--base-model", "--backbone"), "--model"),
    **dict.fromkeys(("--max-seq-length", "--max-seq-len", "--max-tokens"), "--max-length"),
    **dict.fromkeys(("--text", "--text-field", "--input-column"), "--text-column"),
    **dict.fromkeys(("--label", "--target", "--target-column"), "--label-column"),
    **dict.fromkeys(("--warmup-ratio", "--warmup-share"), "--warmup"),
    **dict.fromkeys(("--wd", "--decay"), "--weight-decay"),
    **dict.fromkeys(("--max-grad-norm", "--clip"), "--clip-norm"),
    **dict.fromkeys(("--calibration-rows", "--val-rows"), "--validation-rows"),
    **dict.fromkeys(("--num-samples", "--draws", "--s"), "--samples"),
    **dict.fromkeys(("--random-state", "--random-seed"), "--seed"),
}
# typer names it nowhere else, and BadParameter is one with the same methods.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])


@app.callback(invoke_without_command=True, help=ABOUT)
def bare(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version, or the help if no command is named."""
    if version:
        typer.echo(f"bara {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line; print an error as one sentence on stderr.

    Exit codes: 0 for success; 1 for an error in bara; 2 for a mistake that the user can mend; 130, 143 and
    129 after Ctrl-C, SIGTERM and SIGHUP. They do not depend on whether anybody reads the output.
    """
    outlast_readers()
    atexit.register(gc.freeze)  # at its end Python would look for garbage in all of torch and transformers
    terminal.mode = terminal.Mode(debug="--debug" in sys.argv)
    if not terminal.mode.debug:
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"arviz.*")
        hush_libraries()
    try:
        code = app(prog_name="bara", standalone_mode=False) or 0
    except UsageError as error:
        code = _fail(_usage(error), 2)
    except BaraError as error:
        code = _fail(str(error), 2)
    except MemoryError:
        code = _fail("There is not enough memory: lower the rank, the batch size or the number of draws.", 2)
    except OSError as error:
        long = error.errno == errno.ENAMETOOLONG  # a name that any option gave
        name = f"{str(error.filename)[:60]!r} is not a file name ({error.strerror}): give a shorter one."
        code = _fail(name, 2) if long else _fail(_unforeseen(error), 1)
    except Exception as error:  # noqa: BLE001 - the outermost place: unforeseen errors end here
        code = _fail(_unforeseen(error), 1)
    sys.exit(code)


def _fail(sentence: str, code: int) -> int:
    """Print an error, and with --debug its traceback; return the exit code."""
    if terminal.mode.debug:
        traceback.print_exc()
    typer.secho(f"Error: {abbreviated(sentence)}", fg=typer.colors.RED, err=True)
    return code


def _usage(error: Exception) -> str:
    """Return one sentence on wrong arguments that names the help to read."""
    message = str(getattr(error, "format_message", error.__str__)())
    if isinstance(error.__cause__, ValidationError):  # its message calls the value "Input"
        message = message.replace("Input", repr(error.__cause__.errors()[0]["input"])[:60], 1)
    message = ONE_VALUE.sub(r"\1 is not \2, the only value", message.replace("Value error, ", ""))
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "bara"
    unknown = UNKNOWN.match(message)
    if unknown and (instead := COMMANDS.get(name := f"{command} {unknown[1]}")):
        return f"`{name}` was removed: {instead}."
    if meant := _named_here(error):
        return f"No such option: {getattr(error, 'option_name', '')}, it is called {meant} here."
    return f"{' '.join(message.split()).rstrip('.')}: see `{command} --help`."


def _named_here(error: Exception) -> str:
    """Return our option for a name that other programs use; "" if we know none."""
    context, name = getattr(error, "ctx", None), str(getattr(error, "option_name", ""))
    meant = SYNONYMS.get(name.replace("_", "-").lower(), "")
    known = [option for param in context.command.params for option in param.opts] if context else []
    return meant if meant in known else ""


def _unforeseen(error: Exception) -> str:
    """Return the sentence for an unforeseen error, and keep its traceback in a file."""
    text = " ".join(str(error).split())[:200].rstrip(".").replace(". ", "; ")
    if "allocate memory" in text or "out of memory" in text:
        return f"There is not enough memory ({text}): lower the rank, the batch size or the number of draws."
    with tempfile.NamedTemporaryFile(
        "w", prefix="bara-traceback-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exc(file=file)
    return (
        f"Something went wrong that should not ({type(error).__name__}: {text}): please report it and attach "
        f"{file.name}, the traceback."
    )


if __name__ == "__main__":
    main()
