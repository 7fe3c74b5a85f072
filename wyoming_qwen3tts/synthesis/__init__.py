"""Turns a text and a voice into audio."""
