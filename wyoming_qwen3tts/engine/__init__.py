"""Requests in, ordered audio out."""
