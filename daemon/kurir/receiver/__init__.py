"""The other side: what a server needs so that a repeated delivery is harmless.

`middleware(Store(path))` goes into an aiohttp application; `python -m kurir.receiver` is a small server that has it and
keeps what it received. Nothing here needs the daemon.
"""

from kurir.receiver.claims import ClaimLost
from kurir.receiver.idempotency import Claim, current_claim, middleware
from kurir.receiver.keys import by_authorization, everybody
from kurir.receiver.responses import succeeded
from kurir.receiver.store import Store, StoreFailing

__all__ = [
    "Claim",
    "ClaimLost",
    "Store",
    "StoreFailing",
    "by_authorization",
    "current_claim",
    "everybody",
    "middleware",
    "succeeded",
]
