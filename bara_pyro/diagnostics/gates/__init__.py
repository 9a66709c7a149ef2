"""What the gates do: draws, sparsity, effective rank, tokens, pruning."""
