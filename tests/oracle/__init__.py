"""The model in plain numpy, written to be read and compared with, not to be fast.

Graphs and runtime are tested against these modules; the modules themselves are tested against codes
that the official PyTorch package produced (``tests/golden/official_codes.json``).
"""
