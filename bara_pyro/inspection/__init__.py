"""`bara inspect`: what a fitted model's rank does, and how far its posterior can be trusted, on one page."""
