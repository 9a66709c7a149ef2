"""An example plug-in of bara_pyro: Bayesian VeRA, a guide, a prior and a task of replies."""
