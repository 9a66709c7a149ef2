"""One file per command; slow modules are imported inside functions to keep `--help` fast."""
