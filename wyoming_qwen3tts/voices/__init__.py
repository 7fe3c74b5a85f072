"""Which voices there are."""
