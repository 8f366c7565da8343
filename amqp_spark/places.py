"""Places of files (a path or a URI) as shown in messages."""

from __future__ import annotations


def shown(place: str) -> str:
    """Return the place without secrets: without the query and the login of a URI.

    Args:
        place: an absolute path, which is returned unchanged, or a URI.
    """
    if place.startswith("/"):
        return place
    scheme, separator, rest = place.partition("?")[0].partition("://")
    if not separator:
        return scheme
    authority, slash, path = rest.partition("/")
    if ":" in authority and "@" in path:  # a secret with an unencoded slash
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
