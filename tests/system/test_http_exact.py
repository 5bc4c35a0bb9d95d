"""What leaves is what was accepted: target, headers, body, one request for one attempt."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
import trustme

from kurir.domain.policy import Tls
from kurir.system.http import Fault, HttpSender, Redirects, Route, WireRequest
from support.server import Close, Raw, Reply, Server
from system.http_sending import PATIENT, client

TARGETS = [
    "/p%28a%29%2Fb?sig=a%2Fb%7E",
    "/p?",
    "//",
    "//double//slash?x=//",
    "/?a=b?c=d&e=%20+%2B",
    "/%e2%82%ac/%E2%82%AC",
    "/a;b=c,d:@!$&'()*+=[]|^`{}\"<>\\",
    "/.well-known/../x/./y",
    "/%2e%2e/%zz%",
    "/q?a[]=1&b={x}|y",
]


@pytest.mark.parametrize("target", TARGETS)
async def test_e12_the_request_target_leaves_byte_for_byte(target: str) -> None:
    async with Server() as srv, client(srv.url) as http:
        await http.send(target)
        assert srv.requests[0].line == f"POST {target} HTTP/1.1".encode()


@pytest.mark.parametrize(("target", "sent"), [("", "/"), ("?x=1", "/?x=1")])
async def test_e12_an_empty_path_becomes_a_slash(target: str, sent: str) -> None:
    async with Server() as srv, client(srv.url) as http:
        await http.send(target)
        assert srv.requests[0].target == sent


async def test_headers_leave_as_given_and_nothing_is_added_but_framing() -> None:
    headers = (
        ("X-One", "1"),
        ("title", "smörgås 🎉"),
        ("X-ONE", "2"),
        ("Content-Type", "text/plain; charset=latin-1"),
        ("Empty", ""),
    )
    async with Server() as srv, client(srv.url) as http:
        await http.send(headers=headers, body=b"abc")
        host = srv.url.removeprefix("http://").encode()
        assert srv.requests[0].headers == (
            (b"Host", host),
            (b"Content-Length", b"3"),
            *((name.encode(), value.encode()) for name, value in headers),
        )
        assert srv.requests[0].body == b"abc"


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("POST", b"", b"0"),
        ("PUT", b"", b"0"),
        ("GET", b"", b"0"),
        ("DELETE", b"", b"0"),
        ("POST", None, b"0"),
        ("GET", None, None),
        ("DELETE", None, None),
        ("PROPFIND", None, None),
    ],
)
async def test_p7_no_body_and_an_empty_body_are_told_apart(
    method: str, body: bytes | None, length: bytes | None
) -> None:
    async with Server() as srv, client(srv.url) as http:
        await http.send(method=method, body=body)
        assert srv.requests[0].header("Content-Length") == length
        assert srv.requests[0].header("Transfer-Encoding") is None
        assert srv.requests[0].body == b""


async def test_a_method_keeps_its_case() -> None:
    async with Server() as srv, client(srv.url) as http:
        await http.send(method="Purge", body=None)
        assert srv.requests[0].method == "Purge"


@pytest.mark.parametrize("size", [1, 65_536, 65_537, 3_000_000])
async def test_bodies_arrive_whole_from_memory_and_from_a_file(size: int, tmp_path: Path) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    (tmp_path / "body").write_bytes(data)
    async with Server() as srv, client(srv.url) as http:
        first = await http.send(body=data)
        second = await http.send(body=tmp_path / "body")
        assert [request.body == data for request in srv.requests] == [True, True]
        assert srv.connections == 1
        assert first.sent_bytes == second.sent_bytes > size


@pytest.mark.parametrize(
    ("headers", "url", "method"),
    [
        ((("X", "a\r\nEvil: 1"),), "/", "POST"),
        ((("X", "a\0"),), "/", "POST"),
        ((("X", "a\n"),), "/", "POST"),
        ((("X", "\ud83d"),), "/", "POST"),
        ((("X Y", "a"),), "/", "POST"),
        ((("X:", "a"),), "/", "POST"),
        ((("", "a"),), "/", "POST"),
        ((("Transfer-Encoding", "chunked"),), "/", "POST"),
        ((("content-length", "3"),), "/", "POST"),
        ((("Expect", "100-continue"),), "/", "POST"),
        ((), "/a b", "POST"),
        ((), "/a\r\nX: 1", "POST"),
        ((), "/a#b", "POST"),
        ((), "/ä", "POST"),
        ((), ".evil.example/", "POST"),
        ((), "@evil.example/", "POST"),
        ((), "/", "GET / HTTP/1.1\r\nX:"),
        ((), "/", "CONNECT"),
        ((), "/", ""),
    ],
)
async def test_e13_what_would_corrupt_the_wire_is_refused_before_connecting(
    headers: tuple[tuple[str, str], ...], url: str, method: str
) -> None:
    async with Server() as srv, client(srv.url) as http:
        with pytest.raises(ValueError, match=r"."):
            await http.try_send(url, headers=headers, method=method)
        assert srv.connections == 0


@pytest.mark.parametrize("origin", ["http://user:pass@h", "ftp://h", "http://", "http://h/", "https://h:x", "http://ä"])
async def test_a_route_is_an_origin_and_nothing_else(origin: str) -> None:
    sender = HttpSender()
    with pytest.raises(ValueError, match="not an origin"):
        await sender.send(WireRequest(method="GET", url=origin + "/"), Route(origin=origin), PATIENT, keep=0)
    await sender.close()


async def test_cookies_are_never_sent_back() -> None:
    async with Server("localhost") as srv, client(srv.url) as http:
        srv.answer(Reply(200, b"", (("Set-Cookie", "session=1; Path=/"),)))
        await http.send()
        await http.send()
        assert [request.header("Cookie") for request in srv.requests] == [None, None]


@pytest.mark.parametrize(
    "cookie", ["=", ";;;", "a=b; Path", "\xff=\xfe", "[]=1", "a" * 4_000, "a=b; Max-Age=x; Expires=y"]
)
async def test_hostile_cookies_change_nothing(cookie: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Server("localhost") as srv, client(srv.url) as http:
        srv.answer(Raw(f"HTTP/1.1 200 OK\r\nSet-Cookie: {cookie}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")))
        assert (await http.send()).status == 200
        assert caplog.text == ""


async def test_the_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server() as srv, Server() as proxy, client(srv.url) as http:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        await http.send()
        assert (len(srv.requests), proxy.connections) == (1, 0)


async def test_a_configured_proxy_gets_the_whole_url_and_its_credentials_each_time() -> None:
    async with Server() as proxy, client("http://nowhere.invalid") as http:
        for _ in range(2):
            await http.send("/p%28?x=%7E", proxy=proxy.url.replace("//", "//me:s%40crt@"))
        assert [request.target for request in proxy.requests] == ["http://nowhere.invalid/p%28?x=%7E"] * 2
        assert [request.header("Proxy-Authorization") for request in proxy.requests] == [b"Basic bWU6c0BjcnQ="] * 2
        assert proxy.requests[0].header("Host") == b"nowhere.invalid"
        assert proxy.connections == 1


async def test_a_proxy_that_refuses_the_tunnel_means_that_nothing_was_written() -> None:
    async with Server() as proxy, client("https://nowhere.invalid") as http:
        proxy.answer(Reply(407))
        fault = await http.fail(proxy=proxy.url)
        assert (fault.kind, fault.wrote, fault.detail) == (Fault.PROXY, False, "the proxy answered 407")
        assert proxy.requests[0].line == b"CONNECT nowhere.invalid:443 HTTP/1.1"


async def test_a_proxy_that_is_not_there_is_a_fault_of_the_proxy() -> None:
    async with Server() as gone:
        url = gone.url
    async with client("http://nowhere.invalid") as http:
        fault = await http.fail(proxy=url)
        assert (fault.kind, fault.wrote) == (Fault.PROXY, False)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 307, 308])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_redirects_are_never_followed_by_default(status: int, method: str) -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Reply(status, b"", (("Location", "/elsewhere"),)))
        reply = await http.send(method=method)
        assert (reply.status, reply.header("location")) == (status, "/elsewhere")
        assert len(srv.requests) == 1


async def test_a_308_to_the_same_origin_is_followed_with_the_same_body(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"x" * 100_000)
    async with Server() as srv, client(srv.url) as http:
        srv.answer([
            Reply(308, b"", (("Location", f"{srv.url}/b%2F?x=%7E"),)),
            Reply(307, b"", (("Location", "c%28"),)),
            Reply(201),
        ])  # fmt: skip
        reply = await http.send(
            "/a", body=tmp_path / "body", headers=(("Idempotency-Key", "k"),), redirects=Redirects.SAME_ORIGIN
        )
        assert reply.status == 201
        assert [request.target for request in srv.requests] == ["/a", "/b%2F?x=%7E", "/c%28"]
        assert {request.header("Idempotency-Key") for request in srv.requests} == {b"k"}
        assert {request.body for request in srv.requests} == {b"x" * 100_000}
        assert reply.sent_bytes > 300_000


@pytest.mark.parametrize(
    "location",
    [
        "http://evil.example/x",
        "//evil.example/x",
        "https://{host}/x",
        "http://{host}.evil/x",
        "/a b",
        "/ä",
        "",
        "\\\\evil",
    ],
)
@pytest.mark.parametrize("status", [301, 307])
async def test_a_redirect_to_another_origin_or_of_another_kind_stays_a_reply(location: str, status: int) -> None:
    async with Server() as srv, client(srv.url) as http:
        host = srv.url.removeprefix("http://")
        srv.answer([Reply(status, b"", (("Location", location.format(host=host)),)), Reply(200)])
        reply = await http.send(redirects=Redirects.SAME_ORIGIN)
        if location == "\\\\evil" and status == 307:
            assert srv.requests[1].target == "/\\\\evil"  # a path of the same origin
        else:
            assert reply.status == status
            assert len(srv.requests) == 1


async def test_a_circle_of_redirects_ends_with_the_sixth_reply() -> None:
    async with Server() as srv, client(srv.url) as http:
        srv.answer(Reply(307, b"", (("Location", "/"),)))
        reply = await http.send(redirects=Redirects.SAME_ORIGIN)
        assert (reply.status, len(srv.requests)) == (307, 6)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST"])
async def test_a_connection_that_breaks_under_a_request_is_not_tried_again_unseen(method: str) -> None:
    """The library would repeat idempotent methods on a connection that was used before."""
    async with Server() as srv, client(srv.url) as http:
        srv.answer([Reply(200), Close(), Reply(200)])
        await http.send(method=method)
        fault = await http.fail(method=method)
        assert (fault.kind, fault.wrote) == (Fault.RESET, True)
        assert len(srv.requests) == 2


async def test_early_data_of_a_server_is_not_taken_for_the_next_reply() -> None:
    async with Server() as srv, client(srv.url) as http:
        answer = Reply(200)
        stray = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
        srv.answer([Raw(answer.head() + stray, keep_alive=True), Reply(201)])
        assert (await http.send()).status == 200
        assert (await http.send()).status == 201
        assert srv.connections == 2


async def test_an_https_request_tunnels_through_the_proxy_and_stays_exact(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", srv.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    sink.write(data)
            sink.close()

        await asyncio.gather(copy(reader, upstream_writer), copy(upstream_reader, writer))

    heads: list[bytes] = []
    async with Server("localhost", tls=authority) as srv, client(srv.url) as http:
        proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        for _ in range(2):
            reply = await http.send(
                "/p%28", proxy=f"http://me:pw@127.0.0.1:{port}", tls=Tls(ca=str(tmp_path / "ca.pem"))
            )
            assert reply.status == 200
        assert len(heads) == 1  # the tunnel is kept
        assert b"Proxy-Authorization: Basic bWU6cHc=" in heads[0]
        assert [request.target for request in srv.requests] == ["/p%28"] * 2
        assert srv.requests[0].header("Proxy-Authorization") is None
        await http.sender.close()
        proxy.close()
        await proxy.wait_closed()
