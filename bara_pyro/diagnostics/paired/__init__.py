"""Compare two runs, or two groups of runs with several seeds, on the same rows."""
