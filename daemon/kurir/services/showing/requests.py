"""What a job sends, and what became of those that never were, as documents."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from kurir.domain.job import ADHOC_TOPIC, OUTBOX_PREFIX, Job
from kurir.domain.peer import Peer
from kurir.services.registry import Registry
from kurir.services.showing.facilities import without_secrets
from kurir.services.showing.letter_documents import DroppedEntryDocument, EditedDocument, RequestDocument
from kurir.services.showing.views import error_document, instant
from kurir.store.ledger import Entry
from kurir.store.look import EditSeen


def request_document(registry: Registry, job: Job, edits: Iterable[EditSeen], peer: Peer) -> RequestDocument:
    """A job's request as its owner may see it.

    What the operator configured, a path or a header, is for administrators: it may hold a credential.
    """
    topic = None if job.topic == ADHOC_TOPIC or job.topic.startswith(OUTBOX_PREFIX) else registry.topics.get(job.topic)
    own = peer.admin or topic is None or "path" in topic.overridable
    configured = {name.lower() for name in topic.headers} if topic is not None and not peer.admin else set()
    return RequestDocument(
        method=job.method,
        destination=job.destination or None,
        target=job.target if own else None,
        headers=without_secrets({n: v for n, v in job.headers if n.lower() not in configured}),
        content_type=job.content_type,
        size=job.size,
        idempotency_key=job.key,
        edits=[EditedDocument(instant(edit.wall_at), edit.key or job.public_id) for edit in edits],
    )


def dropped_document(entry: Entry) -> DroppedEntryDocument:
    """An entry of the ledger."""
    return DroppedEntryDocument(
        at=instant(entry.wall_at),
        job=str(UUID(bytes=entry.uid)),
        owner=entry.owner,
        topic=entry.topic,
        destination=entry.destination or None,
        idempotency_key=entry.key,
        bytes=entry.size,
        why=entry.why,
        last_error=error_document(entry.error),
        by=entry.by,
    )
