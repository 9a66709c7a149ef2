"""Generate replies with uncertainty, score them with reward models, and run programs in a sandbox."""
