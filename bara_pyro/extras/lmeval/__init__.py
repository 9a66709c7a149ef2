"""Evaluate runs with EleutherAI's lm-evaluation-harness."""
