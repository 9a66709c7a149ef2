"""Inference core shared by all methods: program, likelihood, guide, ELBO, SVI and prediction."""
