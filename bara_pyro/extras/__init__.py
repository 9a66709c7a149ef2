"""Uses of the library (replies, hub, serving and others), which the other packages never import."""
