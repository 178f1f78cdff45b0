"""Addresses of other services that this one may be told to ask or to tell."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

URL_LENGTH_MAX = 2000


def is_safe_url(url: str) -> bool:
    """Return whether an address is of HTTPS, or of HTTP on this machine.

    It has at most 2000 characters of ASCII without blanks, and neither a user nor a fragment.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= URL_LENGTH_MAX
    if not plain or not host or port == 0 or "@" in parts.netloc or "#" in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
