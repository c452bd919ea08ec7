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


def cache() -> Path:
    """Return where results that can be made again are kept: under the user's cache folder (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scaling-profiler"
