"""Addresses."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether an address or name is of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
