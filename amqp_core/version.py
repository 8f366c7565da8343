"""The version of the distribution, which has both packages. The build reads it from here, too."""

from __future__ import annotations

__version__ = "0.1.0"
