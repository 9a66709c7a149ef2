"""bara_pyro.microworld."""
