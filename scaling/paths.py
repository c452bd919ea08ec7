"""Where things lie: the Hydra tree in a checkout and in an installed wheel."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def conf() -> Path:
    """Return the folder of the Hydra tree.

    Returns:
        ``scaling/conf`` where the package was installed from a wheel, ``conf`` beside it in a checkout.
    """
    installed = PACKAGE / "conf"
    return installed if installed.is_dir() else PACKAGE.parent / "conf"


def traces() -> Path:
    """Return the folder in which traced steps are kept between runs: ``scaling/traces`` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "scaling" / "traces"
