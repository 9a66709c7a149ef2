"""bara_pyro.report."""
