"""Large payloads as files: complete under their name, or not there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kurir.domain.errors import StoreFailing
from kurir.domain.job import BodyKind
from kurir.store import bodies
from kurir.store.backup import backup
from support.store import Store

UID = bytes(range(16))
CONTENT = b"0123456789" * 10_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bodies.prepare(tmp_path)
    return tmp_path


def test_what_was_written_is_read_and_removed(folder: Path) -> None:
    written = bodies.write(folder, UID, [CONTENT[:5], b"", CONTENT[5:]])
    assert written == bodies.Written(len(CONTENT), hashlib.sha256(CONTENT).digest())
    with bodies.open_body(folder, UID, written.digest, written.size) as file:
        assert file.read() == CONTENT
    [path] = (folder / "bodies").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert bodies.total_size(folder) == len(CONTENT)
    bodies.delete(folder, UID, written.digest)
    bodies.delete(folder, UID, written.digest)
    assert bodies.names(folder) == ()


def test_an_edited_payload_is_another_file(folder: Path) -> None:
    one, two = bodies.write(folder, UID, b"one"), bodies.write(folder, UID, b"two")
    for written, content in ((one, b"one"), (two, b"two")):
        with bodies.open_body(folder, UID, written.digest, 3) as file:
            assert file.read() == content


def test_a_source_that_fails_leaves_nothing(folder: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield CONTENT
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        bodies.write(folder, UID, broken())
    assert bodies.names(folder) == ()


def test_nothing_is_there_before_the_commit(folder: Path) -> None:
    writer = bodies.BodyWriter(folder, UID)
    writer.feed(CONTENT)
    with pytest.raises(bodies.BodyMissing):
        bodies.open_body(folder, UID, hashlib.sha256(CONTENT).digest(), len(CONTENT))
    writer.abort()
    writer.abort()
    assert bodies.names(folder) == ()


def test_a_link_that_somebody_put_in_the_way_is_not_followed(folder: Path) -> None:
    victim = folder / "victim"
    victim.write_bytes(b"precious")
    (folder / "bodies" / f"{UID.hex()}.part").symlink_to(victim)
    with pytest.raises(StoreFailing):
        bodies.write(folder, UID, CONTENT)
    digest = hashlib.sha256(b"precious").digest()
    (folder / "bodies" / bodies.name_of(UID, digest)).symlink_to(victim)
    with pytest.raises(bodies.BodyMissing):
        bodies.open_body(folder, UID, digest, 8)
    assert victim.read_bytes() == b"precious"


def test_a_payload_that_was_cut_is_missing(folder: Path) -> None:
    written = bodies.write(folder, UID, CONTENT)
    os.truncate(folder / "bodies" / bodies.name_of(UID, written.digest), 10)
    with pytest.raises(bodies.BodyMissing, match="has 10 bytes"):
        bodies.open_body(folder, UID, written.digest, written.size)


def test_orphans_are_partial_files_and_payloads_of_no_row(store: Store, folder: Path) -> None:
    kept = bodies.write(folder, UID, CONTENT)
    store.add(uid=UID, body=None, body_kind=BodyKind.FILE, size=kept.size, digest=kept.digest)
    replaced = bodies.write(folder, UID, b"before the edit")
    stranger = bodies.write(folder, bytes(16), b"no row")
    (folder / "bodies" / f"{bytes(16).hex()}.part").write_bytes(b"half")
    (folder / "bodies" / "README").write_bytes(b"not ours")
    orphaned = bodies.orphans(store.conn, bodies.names(folder))
    assert set(orphaned) == {
        bodies.name_of(UID, replaced.digest),
        bodies.name_of(bytes(16), stranger.digest),
        f"{bytes(16).hex()}.part",
    }
    bodies.remove(folder, orphaned)
    assert set(bodies.names(folder)) == {bodies.name_of(UID, kept.digest), "README"}


def test_a_backup_has_the_payloads(store: Store, folder: Path) -> None:
    kept = bodies.write(folder, UID, CONTENT)
    store.add(uid=UID, body=None, body_kind=BodyKind.FILE, size=kept.size, digest=kept.digest)
    lost = bytes(15) + b"\1"
    store.add(uid=lost, body=None, body_kind=BodyKind.FILE, size=4, digest=bytes(32))
    done = backup(folder, "b")
    assert (done.bodies, done.missing) == (1, 1)
    with bodies.open_body(done.folder, UID, kept.digest, kept.size) as file:
        assert file.read() == CONTENT


def test_no_folder_and_a_failing_one(tmp_path: Path) -> None:
    assert bodies.names(tmp_path) == ()
    assert bodies.total_size(tmp_path) == 0
    with pytest.raises(StoreFailing):
        bodies.BodyWriter(tmp_path, UID)
