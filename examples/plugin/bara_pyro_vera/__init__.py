"""An example plug-in of bara_pyro: Bayesian VeRA, an exponential guide and a Weibull prior."""
