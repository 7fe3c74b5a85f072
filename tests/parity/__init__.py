"""Parity with the official PyTorch package: same codes, same audio, same vectors.

``official.py`` runs in an environment of its own (``.venv-parity``, with torch) and writes what the
official package makes of the cases in ``cases.py``; everything else runs in the project's own
environment and compares. Neither process imports what the other needs.
"""
