"""A run: its settings, its folder, training, evaluation."""
