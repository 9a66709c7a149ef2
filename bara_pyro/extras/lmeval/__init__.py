"""Runs under EleutherAI's lm-evaluation-harness."""
