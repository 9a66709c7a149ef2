"""bara_pyro.metrics."""
