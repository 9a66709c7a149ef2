"""`bara methods`: list the methods."""

from bara_pyro.cli.wrap import TRAIN, listed


@listed(TRAIN)
def methods() -> None:
    """List the training methods."""
    from bara_pyro.cli.catalogue import catalogue
    from bara_pyro.cli.terminal import listing, result, say_next

    entries = [{"name": entry["name"], "summary": entry["summary"]} for entry in catalogue()["methods"]]
    listing(("method", "what it is"), [tuple(entry.values()) for entry in entries])
    say_next("bara", "train", "FILE", "--method", "NAME")
    result(entries)
