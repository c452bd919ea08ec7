"""From raw block timings to figures with intervals: pure functions on frozen records, numpy only.

``reduce.reduce_point`` is the entry: it orders the samples of a run into rounds (``blocks``), turns each round into the
ladder of controlled runs (``ladder``), splits the loss and resamples it over rounds (``shares``, ``bootstrap``), and adds
step times with their outliers (``steps``) and the rank that holds the others up (``slowest``). ``docs/metrics.md`` is the
list of the formulas.
"""
