"""Metrics, health and discovery."""
