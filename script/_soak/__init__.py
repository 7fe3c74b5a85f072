"""The parts of ``script/soak``."""
