"""Composition: flags, files and threads."""
