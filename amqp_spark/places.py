"""Places of files (a path or a URI) as messages may say them."""

from __future__ import annotations


def shown(place: str) -> str:
    """The place without what must not be seen: the query of a URI, and a login in it.

    Parameters:
        place: an absolute path, which is shown as it is, or a URI.
    """
    if place.startswith("/"):
        return place
    scheme, separator, rest = place.partition("?")[0].partition("://")
    if not separator:
        return scheme
    authority, slash, path = rest.partition("/")
    if ":" in authority and "@" in path:  # a secret with a slash that is not encoded
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
