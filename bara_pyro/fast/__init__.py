"""Optimisations of training and prediction that models and guides do not see; each has a switch."""
