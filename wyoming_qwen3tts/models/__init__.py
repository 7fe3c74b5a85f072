"""Which models there are, and how they arrive."""
