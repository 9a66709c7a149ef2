"""The uses: each a room of its own that stands on the library, and that the library does not know."""
