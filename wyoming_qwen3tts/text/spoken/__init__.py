"""Written numbers, measures and dates as they are spoken, per language."""
