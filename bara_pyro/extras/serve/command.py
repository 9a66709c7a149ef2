"""`bara serve`: a run behind HTTP."""

import sys
from typing import Annotated

import typer

from bara_pyro.cli.options import Moved, Run, RunDevice, Seed
from bara_pyro.cli.wrap import SHARE, listed
from bara_pyro.runs.sections import MOST_DRAWS, MOST_ROWS

BATCHES = "Batches"
LIMITS = "Limits of requests and connections"


@listed(SHARE, "host", "port", "samples", "seed", "max_batch", "max_wait_ms", "model", "device")
def serve(
    run: Run,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all of this machine.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for any that is free.")] = 8000,
    samples: Annotated[
        int, typer.Option(min=0, max=MOST_DRAWS, help="Posterior draws S; 0 for the posterior mean.")
    ] = 10,
    seed: Seed = 0,
    max_batch: Annotated[
        int,
        typer.Option(min=1, max=MOST_ROWS, help="Rows computed together.", rich_help_panel=BATCHES),
    ] = 64,
    max_wait_ms: Annotated[
        float,
        typer.Option(
            min=0, max=60_000, help="Milliseconds that a row waits for others.", rich_help_panel=BATCHES
        ),
    ] = 5.0,
    queue_size: Annotated[
        int,
        typer.Option(
            min=1, max=10**6, help="Rows that may wait; what comes then is refused.", rich_help_panel=BATCHES
        ),
    ] = 4096,
    memory_budget: Annotated[
        int | None,
        typer.Option(
            min=1, help="Bytes of a forward, roughly; the run's own by default.", rich_help_panel=BATCHES
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name that requests may use beside the address listened at; can be repeated, * for any.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    max_bytes: Annotated[
        int, typer.Option(min=1, max=2**31, help="Bytes of a request.", rich_help_panel=LIMITS)
    ] = 8 * 2**20,
    header_seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=86_400, help="Seconds for a client to send a header.", rich_help_panel=LIMITS
        ),
    ] = 10.0,
    body_seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=86_400, help="Seconds for a client to send a body.", rich_help_panel=LIMITS
        ),
    ] = 30.0,
    idle_seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=86_400, help="Seconds that an idle connection is kept.", rich_help_panel=LIMITS
        ),
    ] = 5.0,
    max_connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10**6,
            help="Connections at once. (default: 512, or fewer where the system allows fewer open files)",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Answer questions over HTTP: POST rows to /probabilities, /uncertainty or /draws.

    Requests that come together are computed together; no answer depends on that. There is no
    authentication: whoever reaches the port can ask.
    """
    from bara_pyro.runs.manifest import check_run

    check_run(run)

    from bara_pyro.cli.terminal import remark, result, say
    from bara_pyro.cli.typed import note_of_draws
    from bara_pyro.extras.serve.http.app import ServerLimits, create_app
    from bara_pyro.extras.serve.http.engine import RunEngine
    from bara_pyro.extras.serve.http.local import local_backbone
    from bara_pyro.extras.serve.http.protocol import Patience
    from bara_pyro.extras.serve.http.server import LOOPBACK, check_connections, hosts_of, listen, url_of
    from bara_pyro.extras.serve.http.server import serve as answer
    from bara_pyro.runs.folder import load_system, stored_config

    patience = Patience(header_seconds, body_seconds, idle_seconds, check_connections(max_connections))
    with listen(host, port) as listening:
        backbone = local_backbone(model or stored_config(run)[0].backbone.name)
        system = load_system(run, backbone=backbone, device=device, with_rows=False)
        note_of_draws(system, samples=samples, seed=seed)
        engine = RunEngine(system, samples=samples, seed=seed, memory_budget=memory_budget)
        limits = ServerLimits(max_batch, max_wait_ms / 1000, queue_size, max_bytes)
        app = create_app(engine, limits, hosts=hosts_of(host, allowed_host or ()))
        if host not in LOOPBACK:
            remark(f"Whoever can reach {host} can ask: there is no authentication.")
        say(f"{run} is served at {url_of(listening)} until Ctrl-C")
        result({"url": url_of(listening), **engine.about})
        sys.stdout.flush()  # whoever started this waits for the address
        answer(app, listening, patience)
