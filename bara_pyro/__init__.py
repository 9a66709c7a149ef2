"""bara_pyro: BaRA as probabilistic programs."""
