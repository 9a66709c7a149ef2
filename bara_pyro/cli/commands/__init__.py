"""Commands, one per file; heavy imports are inside the functions, so that help is quick."""
