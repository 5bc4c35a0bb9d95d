"""Faults are values, and say whether the server may have seen the request."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from kurir.domain.policy import Tls
from kurir.system.http import Fault, Timeouts, WireFault, WireReply
from support.server import Answer, Close, Hang, Raw, Reply, Reset, Server, Stage
from system.http_sending import client, raw_server


@pytest.mark.parametrize("answer", [Reset(Stage.HEADERS), Reset(Stage.BODY), Close(Stage.HEADERS), Close(Stage.BODY)])
@pytest.mark.parametrize("reused", [False, True])
async def test_e3_a_break_after_the_first_byte_is_ambiguous(answer: Reset | Close, reused: bool) -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer([Reply(200), answer, Reply(201)] if reused else [answer, Reply(201)])
        if reused:
            await http.send()
        fault = await http.fail(body=b"once", headers=(("Idempotency-Key", "k"),))
        assert (fault.kind, fault.wrote) == (Fault.RESET, True)
        assert (await http.send(body=b"once", headers=(("Idempotency-Key", "k"),))).status == 201
        assert srv.requests[-1].body == b"once"
        assert len(srv.requests) == (3 if reused else 2)


@pytest.mark.parametrize("answer", [Reset(Stage.CONNECT), Close(Stage.CONNECT)])
async def test_e3_a_break_before_anything_was_read_is_ambiguous_too(answer: Reset | Close) -> None:
    """The bytes were handed to the kernel: nobody on this side can know what became of them."""
    async with Server() as srv, client(srv.url) as http:
        srv.answer([answer, Reply(201)])
        fault = await http.fail(body=b"x" * 100_000)
        assert (fault.kind, fault.wrote) == (Fault.RESET, True)
        assert (await http.send()).status == 201


async def test_a_break_in_the_middle_of_the_head_of_a_reply_is_ambiguous() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Raw(b"HTTP/1.1 200 OK\r\nContent-Le"))
        fault = await http.fail()
        assert fault.wrote
        assert fault.received_bytes > 0


@pytest.mark.parametrize(
    "answer",
    [Reset(Stage.CONNECT), Reset(Stage.HEADERS), Close(), Raw(b"nonsense\r\n\r\n"), Hang(), Raw(b"HTTP/1.1 2")],
)
async def test_no_fault_repeats_the_url_because_it_may_hold_a_secret(answer: Answer) -> None:
    limits = Timeouts(connect=300, idle=300, response=300)
    async with Server() as srv, client(srv.url) as http:
        srv.answer(answer)
        for body in (b"", b"x" * 3_000_000):
            fault = await http.fail("/api/v1/t0ken/telemetry?key=t0ken", body=body, timeouts=limits)
            assert fault.detail
            assert "t0ken" not in fault.detail
    async with client(srv.url) as http:
        fault = await http.fail("/api/v1/t0ken", timeouts=limits)
        assert "t0ken" not in fault.detail


async def test_a_missing_body_file_is_found_out_before_connecting(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    async with Server() as srv, client(srv.url) as http:
        for name in ("gone", "link", "folder", "fifo"):
            fault = await http.fail(body=tmp_path / name)
            assert (fault.kind, fault.wrote) == (Fault.BODY_MISSING, False), name
        assert srv.connections == 0


async def test_a_body_file_that_shrinks_under_the_upload_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "body"
    with path.open("wb") as file:
        file.truncate(50_000_000)

    async def stop_short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        os.truncate(path, 1_000)
        while await reader.read(65_536):
            pass

    async with raw_server(stop_short) as http:
        fault = await http.fail(body=path)
    assert (fault.kind, fault.wrote) == (Fault.BODY_MISSING, True)


async def test_descriptors_of_bodies_and_connections_are_given_back(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"x" * 300_000)
    before = sorted(os.listdir("/proc/self/fd"))
    async with Server() as srv, client(srv.url) as http:
        srv.answer([Reply(200), Reset(), Close(), Raw(b"nonsense\r\n\r\n"), Reply(503)])
        for _ in range(6):
            await http.try_send(body=tmp_path / "body")
    await asyncio.sleep(0)  # closed transports give their socket back in the next turn of the loop
    await asyncio.sleep(0)
    assert sorted(os.listdir("/proc/self/fd")) == before


# --- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> Tls:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return Tls(ca=str(tmp_path / "ca.pem"))


async def created(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
    await reader.read()


def server_context(certificate: trustme.LeafCert, clients: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_tls_with_a_trusted_certificate_works_and_is_used_again(authority: trustme.CA, trusted: Tls) -> None:
    async with Server("localhost", tls=authority) as srv, client(srv.url) as http:
        for _ in range(3):
            assert (await http.send("/x", body=b"y" * 200_000, tls=trusted)).status == 200
        assert srv.connections == 1


@pytest.mark.parametrize("stalls", [False, True])
async def test_e8_progress_is_seen_through_tls(authority: trustme.CA, trusted: Tls, stalls: bool) -> None:
    received = 0

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readuntil(b"\r\n\r\n")
        while received < 4_000_000:
            received += len(await reader.read(65_536))
            await asyncio.sleep(60 if stalls and received > 100_000 else 0.01)
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    limits = Timeouts(connect=5_000, idle=500, response=500)
    async with raw_server(slow, server_context(authority.issue_cert("localhost"))) as http:
        outcome = await http.try_send(body=b"x" * 4_000_000, tls=trusted, timeouts=limits)
    if stalls:
        assert isinstance(outcome, WireFault)
        assert (outcome.kind, outcome.wrote, outcome.detail) == (Fault.TIMEOUT, True, "the upload stalled")
    else:
        assert isinstance(outcome, WireReply)
        assert (outcome.status, received) == (201, 4_000_000)
        assert outcome.seconds > 0.6


async def test_an_unknown_authority_is_a_tls_fault_before_anything_is_written(authority: trustme.CA) -> None:
    async with Server("localhost", tls=authority) as srv, client(srv.url) as http:
        fault = await http.fail()
        assert (fault.kind, fault.wrote, fault.certificate_time) == (Fault.TLS, False, False)
        assert fault.detail.startswith("certificate refused: ")
        assert srv.requests == []


async def test_a_certificate_for_another_name_is_a_tls_fault(authority: trustme.CA, trusted: Tls) -> None:
    async with raw_server(created, server_context(authority.issue_cert("other.example"))) as http:
        fault = await http.fail(tls=trusted)
        assert (fault.kind, fault.wrote, fault.certificate_time) == (Fault.TLS, False, False)


@pytest.mark.parametrize("days", [-1, 1])
async def test_a_certificate_outside_of_its_time_says_so(authority: trustme.CA, trusted: Tls, days: int) -> None:
    now = datetime.datetime.now(datetime.UTC)
    begin, end = (
        (now - datetime.timedelta(days=9), now - datetime.timedelta(days=1))
        if days < 0
        else (now + datetime.timedelta(days=1), now + datetime.timedelta(days=9))
    )
    certificate = authority.issue_cert("localhost", not_before=begin, not_after=end)
    async with raw_server(created, server_context(certificate)) as http:
        fault = await http.fail(tls=trusted)
        assert (fault.kind, fault.wrote, fault.certificate_time) == (Fault.TLS, False, True)


async def test_plain_http_behind_https_is_a_tls_fault() -> None:
    async with Server() as srv, client(srv.url.replace("http:", "https:")) as http:
        srv.answer(Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        srv.answer(Close(Stage.CONNECT))
        fault = await http.fail()
        assert fault.kind in (Fault.TLS, Fault.CONNECT)
        assert not fault.wrote


async def test_a_client_certificate_is_shown(authority: trustme.CA, trusted: Tls, tmp_path: Path) -> None:
    own = authority.issue_cert("device")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    for number, pem in enumerate(own.cert_chain_pems):
        pem.write_to_path(tmp_path / "cert.pem", append=number > 0)
    tls = Tls(ca=trusted.ca, cert=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem"))
    async with raw_server(created, server_context(authority.issue_cert("localhost"), authority)) as http:
        assert (await http.send(tls=tls)).status == 201
        fault = await http.fail(tls=trusted)  # with TLS 1.3 the refusal comes after the request
        assert fault.kind in (Fault.TLS, Fault.RESET, Fault.CONNECT)


async def test_tls_files_that_are_missing_or_nonsense_are_a_fault_and_a_changed_file_counts(
    authority: trustme.CA, tmp_path: Path
) -> None:
    path = tmp_path / "late.pem"
    tls = Tls(ca=str(path))
    async with Server("localhost", tls=authority) as srv, client(srv.url) as http:
        assert (await http.fail(tls=tls)).kind is Fault.TLS
        path.write_text("nonsense")
        fault = await http.fail(tls=tls)
        assert (fault.kind, fault.wrote) == (Fault.TLS, False)
        authority.cert_pem.write_to_path(path)
        assert (await http.send(tls=tls)).status == 200
        trustme.CA().cert_pem.write_to_path(path)
        http.sender.reload_trust()
        assert (await http.fail(tls=tls)).kind is Fault.TLS


async def test_an_encrypted_key_without_its_password_is_a_fault_and_asks_nobody(tmp_path: Path) -> None:
    own = trustme.CA().issue_cert("device")
    key = serialization.load_pem_private_key(own.private_key_pem.bytes(), password=None)
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    own.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    async with client("https://127.0.0.1:1") as http:
        fault = await http.fail(tls=Tls(cert=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem")))
        assert (fault.kind, fault.wrote) == (Fault.TLS, False)
