"""Which addresses may not be connected to.

A name proves nothing about where it leads, so what is checked is the address handed to connect(), each time.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

_NAMED = {
    # The unspecified address reaches this machine too.
    "loopback": ("127.0.0.0/8", "::1/128", "0.0.0.0/8", "::/128"),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
}
_NAT64 = ip_network("64:ff9b::/96")


@lru_cache(maxsize=64)
def networks(deny: tuple[str, ...]) -> tuple[Network, ...]:
    """The networks behind names and CIDR texts. Raises ValueError for one that is neither."""
    found: list[Network] = []
    for entry in deny:
        found.extend(ip_network(text, strict=False) for text in _NAMED.get(entry, (entry,)))
    return tuple(found)


def denied(address: str, deny: tuple[str, ...]) -> bool:
    """Whether this numeric address (with or without a zone) is denied; what cannot be read as one always is."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return True
    if not deny:
        return False
    candidates = (parsed, *_embedded(parsed))
    return any(candidate in network for network in networks(deny) for candidate in candidates)


def _embedded(address: IPv4Address | IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that an IPv6 address really leads to."""
    if isinstance(address, IPv4Address):
        return ()
    found = [inner for inner in (address.ipv4_mapped, address.sixtofour) if inner is not None]
    if address in _NAT64 or int(address) >> 32 == 0:  # translated, or the old IPv4-compatible form
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return tuple(found)
