"""One file a command; what is heavy is imported where it is used, so that help stays quick."""
