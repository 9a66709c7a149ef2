"""Bounds on the risk: PAC-Bayes, test sets, the paper's certificate."""
