"""Checks against the real thing: minutes long, run by hand with script/check_*."""
