"""Check the posterior: NUTS as a reference, simulation-based calibration, importance weights, PSIS-LOO."""
