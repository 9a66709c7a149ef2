"""Looking inside a fitted model: what its gates do, and whether its posterior can be trusted."""
