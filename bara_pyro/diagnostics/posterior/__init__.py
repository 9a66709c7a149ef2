"""Whether the posterior can be trusted: NUTS, simulation-based calibration, importance weights."""
