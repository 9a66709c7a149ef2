"""`bara push`: a run with its model card on the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import Overwrite, Run, path
from bara_pyro.cli.wrap import SHARE, listed


@listed(SHARE)
def push(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name on the hub: user/model.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", parser=path, help="Where to write what is uploaded. (default: RUN/hub)"
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="The language model's name on the hub, where the run has it from a folder."),
    ] = None,
    license_name: Annotated[
        str | None, typer.Option("--license", help="Licence of the adapter, as the hub names it.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository a private one.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Write the folder, with its card, and upload nothing.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a model card and upload a run to the Hugging Face hub.

    Uploaded are the files that loading needs, the scores, and a card on method, data, scores, calibration,
    limits and loading; not the predictions, the training log, or any path of this machine.
    """
    from bara_pyro.cli.outputs import check_folder
    from bara_pyro.cli.typed import refuse
    from bara_pyro.runs.manifest import HUB, check_run

    if offline:
        refuse(["private"], "is of an upload, and --offline uploads nothing: leave --offline out")
    check_run(run)
    out = run / HUB if out is None else out
    check_folder(out, overwrite=overwrite, inputs=[run])

    from bara_pyro.cli.terminal import result, say
    from bara_pyro.extras.hub.upload.push import prepare_upload
    from bara_pyro.extras.hub.upload.push import push as upload
    from bara_pyro.runs.ownership import clear

    clear(out)
    if offline:
        prepare_upload(run, name, out, base=base, license_name=license_name)
        say(f"Written to {out}: `hf upload {name} {out}` uploads it")
        result({"out": out, "url": None})
        return
    url = upload(run, name, out, base=base, license_name=license_name, private=private)
    say(f"Uploaded to {url}")
    result({"out": out, "url": url})
