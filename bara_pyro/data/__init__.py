"""bara_pyro.data."""
