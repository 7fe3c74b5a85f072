"""Speaks Wyoming; knows no model."""
