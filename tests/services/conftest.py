"""What the tests of the engine share."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def names(monkeypatch):
    """The name server: what it knows is reached on loopback, anything else is a failure that it can be given."""
    known: dict[str, BaseException | str] = {"far.test": "127.0.0.1", "other.test": "127.0.0.1"}
    real = socket.getaddrinfo

    def look_up(host, *args, **kwargs):
        if isinstance(host, str) and host.endswith(".test"):
            answer = known.get(host, socket.gaierror(socket.EAI_NONAME, "no such name"))
            if isinstance(answer, BaseException):
                raise answer
            return real(answer, *args, **kwargs)
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known
