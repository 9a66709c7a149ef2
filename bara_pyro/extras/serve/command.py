"""`bara serve`: serve a run over HTTP."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import Moved, Run, RunDevice, Seed
from bara_pyro.cli.wrap import SHARE, listed
from bara_pyro.errors import BackboneError
from bara_pyro.runs.sections import MOST_DRAWS, MOST_ROWS

BATCHES = "Batches"
LIMITS = "Limits of requests and connections"


@listed(SHARE, "host", "port", "samples", "seed", "max_batch", "max_wait_ms", "model", "device")
def serve(
    run: Run,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for any free port.")] = 8000,
    samples: Annotated[
        int, typer.Option(min=0, max=MOST_DRAWS, help="Posterior draws S; 0 for the posterior mean.")
    ] = 10,
    seed: Seed = 0,
    max_batch: Annotated[
        int,
        typer.Option(min=1, max=MOST_ROWS, help="Most rows in a batch.", rich_help_panel=BATCHES),
    ] = 64,
    max_wait_ms: Annotated[
        float,
        typer.Option(
            min=0, max=60_000, help="Milliseconds to wait for a batch to fill.", rich_help_panel=BATCHES
        ),
    ] = 5.0,
    queue_size: Annotated[
        int,
        typer.Option(
            min=1, max=10**6, help="Rows held at once; more are refused with 503.", rich_help_panel=BATCHES
        ),
    ] = 4096,
    memory_budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Approximate bytes for the activations of one forward pass. (default: the run's setting)",
            rich_help_panel=BATCHES,
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another host name that requests may use; repeat for several, * for any.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    max_bytes: Annotated[
        int, typer.Option(min=1, max=2**31, help="Largest request body, in bytes.", rich_help_panel=LIMITS)
    ] = 8 * 2**20,
    header_seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=86_400, help="Seconds a client has to send its header.", rich_help_panel=LIMITS
        ),
    ] = 10.0,
    body_seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=86_400, help="Seconds a client has to send its body.", rich_help_panel=LIMITS
        ),
    ] = 30.0,
    idle_seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=86_400, help="Seconds before an idle connection is closed.", rich_help_panel=LIMITS
        ),
    ] = 5.0,
    max_connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10**6,
            help="Most open connections. (default: 512, or fewer if the system limits open files)",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Serve a run over HTTP: POST rows to /probabilities, /uncertainty or /draws.

    Requests that arrive together are computed in one batch, which does not change their answers. There is
    no authentication: anyone who can reach the port can send requests.
    """
    from bara_pyro.runs.manifest import check_run

    check_run(run)

    from bara_pyro.cli.checks import note_of_draws
    from bara_pyro.cli.terminal import remark, result, say
    from bara_pyro.extras.serve.http.app import ServerLimits, create_app
    from bara_pyro.extras.serve.http.engine import RunEngine
    from bara_pyro.extras.serve.http.protocol import Patience
    from bara_pyro.extras.serve.http.server import LOOPBACK, check_connections, hosts_of, listen, url_of
    from bara_pyro.extras.serve.http.server import serve as answer
    from bara_pyro.runs.folder import load_system
    from bara_pyro.runs.stored import stored_config

    patience = Patience(header_seconds, body_seconds, idle_seconds, check_connections(max_connections))
    with listen(host, port) as listening:
        backbone = local_backbone(model or stored_config(run)[0].backbone.name)
        system = load_system(run, backbone=backbone, device=device, with_rows=False)
        note_of_draws(system, samples=samples, seed=seed)
        engine = RunEngine(system, samples=samples, seed=seed, memory_budget=memory_budget)
        limits = ServerLimits(max_batch, max_wait_ms / 1000, queue_size, max_bytes)
        app = create_app(engine, limits, hosts=hosts_of(host, allowed_host or ()))
        if host not in LOOPBACK:
            remark(f"There is no authentication: anyone who can reach {host} can send requests.")
        say(f"Serving {run} at {url_of(listening)}; press Ctrl-C to stop")
        result({"url": url_of(listening), **engine.about})
        sys.stdout.flush()  # the process that started the server may be waiting for the address
        answer(app, listening, patience)


def local_backbone(name: str) -> str:
    """Return the folder of a language model without using the network: weights only in safetensors.

    Args:
        name: a name that `bara_pyro.load_backbone` accepts; a hub name must have been downloaded before.

    Raises:
        BackboneError: the model is not on this machine, or its weights are not in safetensors.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    from bara_pyro.lm.loading import resolve

    folder = Path(resolve(name))
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError, OSError) as error:
            raise BackboneError(
                f"The language model {name!r} is not on this machine, and `bara serve` downloads nothing: "
                "download it first, or give its folder with --model."
            ) from error
    if not any(folder.glob("model*.safetensors")):
        raise BackboneError(
            f"{folder} has no model.safetensors, the only format of weights that `bara serve` reads: save "
            "the language model as safetensors."
        )
    return str(folder)
