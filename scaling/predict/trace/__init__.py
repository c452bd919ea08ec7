"""From a strategy's own step to a ``TracedStep``: record a small world on fake tensors, then draw it out to the depth and the degrees asked for.

``record`` runs the step and knows torch; ``fold``, ``buckets`` and ``assemble`` are arithmetic on what was recorded and know none.
"""
