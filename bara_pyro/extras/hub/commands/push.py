"""`bara push`: upload a run with a model card to the Hugging Face hub."""

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
        typer.Option(metavar="FOLDER", parser=path, help="Folder to write and upload. (default: RUN/hub)"),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="The language model's name on the hub, if the run used a local folder."),
    ] = None,
    license_name: Annotated[
        str | None, typer.Option("--license", help="Licence of the adapter, as the hub names it.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="If the repository is new, make it private.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Write the folder and its card, but do not upload them.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a model card and upload a run to the Hugging Face hub.

    Uploads the files needed for loading, the scores, and a card on method, data, calibration and limits.
    Predictions, the training log and paths of this machine are not uploaded.
    """
    from bara_pyro.cli.checks import check_folder, refuse
    from bara_pyro.runs.manifest import HUB, check_run

    if offline:
        refuse(["private"], "has no effect with --offline, which uploads nothing: leave out one of them")
    check_run(run)
    out = run / HUB if out is None else out
    check_folder(out, overwrite=overwrite, inputs=[run])

    from bara_pyro.cli.terminal import result, say, say_next
    from bara_pyro.extras.hub.upload.push import prepare_upload
    from bara_pyro.extras.hub.upload.push import push as upload
    from bara_pyro.runs.ownership import clear

    clear(out)
    if offline:
        prepare_upload(run, name, out, base=base, license_name=license_name)
        say(f"Written to {out}")
        result({"out": out, "url": None})
        say_next("hf", "upload", name, out)
        return
    url = upload(run, name, out, base=base, license_name=license_name, private=private)
    say(f"Uploaded to {url}")
    result({"out": out, "url": url})
    say_next("hf", "download", name, "--local-dir", "FOLDER", remark="gets the run on another machine")
