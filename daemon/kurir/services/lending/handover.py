"""What a consumer is handed: each leased job with the token of its lease and its payload."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path

from msgspec import UNSET, Raw, UnsetType, structs

from kurir.domain import strictjson
from kurir.domain.errors import Refused
from kurir.domain.job import BodyKind, Job
from kurir.services.showing.documents import LeasedJobDocument, LeaseDocument
from kurir.services.showing.views import Lens
from kurir.store.bodies import BodyMissing, open_body
from kurir.store.leases import Lent


async def payload(folder: Path, lent: Lent) -> bytes | None:
    """The bytes that were accepted; None for a job without any. Raises BodyMissing."""
    job = lent.job
    match job.body_kind:
        case BodyKind.NONE:
            return None
        case BodyKind.FILE:
            return await asyncio.to_thread(_read, folder, job)
        case BodyKind.INLINE:
            if lent.body is None:
                raise BodyMissing("cannot read the payload: it is not in the store any more")
            return lent.body


def document(lens: Lens, lent: Lent, body: bytes | None) -> LeasedJobDocument:
    """The job as its consumer is shown it."""
    raw, text, encoded = _shown(lent.job.content_type, body)
    shown = structs.asdict(lens.job(lent.job))
    shown["lease"] = LeaseDocument(lens.estimate(lent.job.due_at), lent.token)
    return LeasedJobDocument(**shown, payload=raw, body_text=text, body_base64=encoded)


def _read(folder: Path, job: Job) -> bytes:
    with open_body(folder, job.uid, job.digest, job.size) as file:
        try:
            body = file.read()
        except OSError as fault:
            raise BodyMissing(f"cannot read the payload: {fault.strerror}") from fault
    if hashlib.sha256(body).digest() != job.digest:
        raise BodyMissing("cannot read the payload: its file does not hold what was accepted")
    return body


def _shown(kind: str | None, body: bytes | None) -> tuple[Raw | UnsetType, str | UnsetType, str | UnsetType]:
    """JSON byte for byte, else text, else base64."""
    if body is None:
        return UNSET, UNSET, UNSET
    if _is_json(kind, body):
        return Raw(body), UNSET, UNSET
    try:
        return UNSET, body.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, UNSET, base64.b64encode(body).decode()


def _is_json(kind: str | None, body: bytes) -> bool:
    """Whether a payload is what its type says. (A raw submit is taken at its word.)"""
    essence = (kind or "").partition(";")[0].strip().lower()
    if essence != "application/json" and not essence.endswith("+json"):
        return False
    try:
        strictjson.check_payload(body)
    except Refused:
        return False
    return True
