"""The benchmark behind ``script/benchmark``.

Read in this order: ``cli`` -> ``campaign`` (what is run, in which order) -> ``speech``,
``published``, ``components``, ``machine`` (what is measured, each in a process of its own) ->
``report`` (what follows from it).
"""
