"""The host's lane: time that a rank's CPU thread needs to launch what the card then runs.

A step takes ``max(card, host)`` in each region between synchronisations, not their sum; which of the two wins is the schedule's affair.
"""

from __future__ import annotations

import numpy as np

from scaling.catalogue.pricing import HostConstants
from scaling.predict.table import Floats, OperatorTable


def host_seconds(table: OperatorTable, costs: HostConstants) -> Floats:
    """Return the seconds of CPU time that each operator takes to launch once, sleeps included."""
    us = np.where(table.backward, costs.backward_us, costs.launch_us)
    us[table.rows("view")] = costs.view_us
    seconds: Floats = us * 1e-6 + table.sleeps
    return seconds
