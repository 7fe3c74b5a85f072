"""Verifies a bundle: that it is whole, and that it computes what its checkpoint says.

Read in this order: ``verify`` (the order of work), ``structure`` and ``census`` (what the files say
about themselves), ``reference`` and ``utterances`` (what float32 gives), ``comparison`` and
``weights`` (how far the bundle is from that), ``limits`` (how far it may be), ``report``.

This is the one place that needs both sides, what builds a bundle and what runs it: a graph is
compared as the server would run it.
"""
