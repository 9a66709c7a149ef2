"""An example plug-in for bara_pyro: Bayesian VeRA, a guide, a prior, a reply task and a command."""
