"""Where things are kept between runs: converted models and compiled programs."""

import os
from pathlib import Path

import platformdirs

VARIABLE = "CBJAX_CACHE"


def cache_dir() -> Path:
    """The user's cache folder, or the one that the environment variable `CBJAX_CACHE` names."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_cache_dir("cbjax")).absolute()
