"""MLflow, and the only room that knows it: one writer, explicit run ids, no fluent global state.

A curve is one parent run whose metrics have ``step = gpus``, so that two runs overlay as two curves in MLflow's own
page; each point is a nested child.
"""

from scaling.tracking.curve import scalars
from scaling.tracking.log import TrackingSettings, how_to_open, log_run, store_uri, upload
from scaling.tracking.process import TrackingProcess

__all__ = ["TrackingProcess", "TrackingSettings", "how_to_open", "log_run", "scalars", "store_uri", "upload"]
