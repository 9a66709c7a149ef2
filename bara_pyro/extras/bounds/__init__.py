"""Bound the risk: PAC-Bayes bounds, test-set bounds and the paper's certificate."""
