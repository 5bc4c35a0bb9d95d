"""Tokens of destinations with client credentials (RFC 6749, section 4.4), which fill {secret:oauth} in their headers.

A token is fetched when a request needs one, once for all that wait for it, and used until shortly before it expires.
Nothing is fetched ahead of time. It is in memory only, and what a server echoes of it is taken out like any secret.

A token server that fails holds the destination: no job is charged, the reason stands in `why`, and after a pause (that
of the destination's `retry`) one job tries again. A definite no, such as invalid_client, holds like a 401: until a
secret changes, with a try after 1, 2, 5, 15 and then every 60 minutes.

The client names itself by HTTP Basic authentication, as the standard recommends. A server that answers invalid_client
is asked once more with id and secret in the body; what worked is kept to.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlencode

from kurir.domain.events import Emit, TokenAsked
from kurir.domain.job import ErrorKind
from kurir.domain.outcome import Answer, Hold, HoldDestination, Verdict
from kurir.domain.policy import MINUTE, SECOND, Destination, OAuth, Tls
from kurir.domain.retry import Uniform, delay
from kurir.domain.token_answer import Bought, NoToken, judge
from kurir.services.delivering.request import USER_AGENT, timeouts_of
from kurir.system.clock import Clock
from kurir.system.http import HttpSender, Route, WireFault, WireRequest
from kurir.system.secrets import Secrets, SecretUnusable, references

KEPT = 64 * 1024
"""Bytes of a token server's answer that are read."""

STANDS = 30 * SECOND
"""How long a definite no is not asked for again by requests that were under way, in milliseconds."""

_MOST_REFRESHED = 1000


@dataclass(slots=True)
class Token:
    """A token in use. `proven`: a server has accepted it."""

    value: str = field(repr=False)
    fetched_at: int
    good_until: int | None
    proven: bool = False


@dataclass(slots=True)
class _Account:
    """What is known of the token of one destination."""

    settings: tuple[OAuth, Tls, str]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    token: Token | None = None
    in_body: bool = False
    failures: int = 0
    refusal: HoldDestination | None = None
    again_at: int = 0
    refreshed: set[int] = field(default_factory=set)  # jobs whose 401 was put down to an old token

    def usable(self, now: int) -> Token | None:
        token = self.token
        return token if token is not None and (token.good_until is None or now < token.good_until) else None


class Tokens:
    """Fetches tokens and keeps them. `secrets` are those of today; `failed` is told of failures on the way."""

    def __init__(
        self,
        sender: HttpSender,
        clock: Clock,
        uniform: Uniform,
        *,
        secrets: Callable[[], Secrets],
        failed: Callable[[], None],
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._uniform = uniform
        self._secrets = secrets
        self._failed = failed
        self._accounts: dict[str, _Account] = {}
        self.emit: Emit = lambda event: None
        self.recovered: Callable[[str, Hold], None] = lambda destination, hold: None

    async def of(self, destination: Destination, oauth: OAuth, route: Route) -> Token | HoldDestination:
        """The token of a destination, fetched over `route` if there is none; or why its jobs have to wait."""
        account = self._account(destination, oauth)
        found = account.usable(self._clock.now())
        if found is not None:
            return found
        async with account.lock:  # all who wait here share the answer, token or not
            now = self._clock.now()
            found = account.usable(now)
            if found is not None:
                return found
            if account.refusal is not None and now < account.again_at:
                return account.refusal
            return await self._fetch(account, destination, oauth, route)

    def judged(self, destination: Destination, job: int, token: Token, status: int, verdict: Verdict) -> Verdict:
        """The verdict on an answer to a request with a token: a 401 may mean that it is good no longer.

        A token that was accepted before is replaced, and the job goes again, once. A new one that is refused is a 401
        like any other.
        """
        account = self._accounts.get(destination.name)
        if account is None or (isinstance(verdict, HoldDestination) and verdict.hold is Hold.PORTAL):
            return verdict
        if status != 401:
            token.proven = True
            account.refreshed.discard(job)
            return verdict
        again = job in account.refreshed  # then it is the job that is refused, not the token
        if account.token is token and not (again and self._clock.now() - token.fetched_at < MINUTE):
            account.token = None
        if again or not token.proven:
            return verdict
        if len(account.refreshed) >= _MOST_REFRESHED:
            account.refreshed.clear()
        account.refreshed.add(job)
        return HoldDestination(
            Hold.TOKEN, ErrorKind.UNAUTHORIZED, "answered 401 to a token that was good; a new one is fetched", 401, 0
        )

    def secrets_changed(self, names: frozenset[str]) -> None:
        """Ask again where it was refused; where the credentials are others, for a new token."""
        for account in self._accounts.values():
            oauth = account.settings[0]
            if (references(oauth.client_id) | references(oauth.client_secret)) & names:
                account.token = None
            account.refusal, account.failures = None, 0

    def reconnected(self) -> None:
        """Another network: what failed may work."""
        for account in self._accounts.values():
            account.refusal, account.failures = None, 0

    def keep(self, destinations: Container[str]) -> None:
        """Forget the tokens of all others."""
        self._accounts = {name: account for name, account in self._accounts.items() if name in destinations}

    def _account(self, destination: Destination, oauth: OAuth) -> _Account:
        settings = (oauth, destination.tls, destination.proxy)
        found = self._accounts.get(destination.name)
        if found is None or found.settings != settings:
            found = self._accounts[destination.name] = _Account(settings)
        return found

    async def _fetch(
        self, account: _Account, destination: Destination, oauth: OAuth, route: Route
    ) -> Token | HoldDestination:
        try:
            answer = await self._ask(account, destination, oauth, route)
        except (SecretUnusable, ValueError) as fault:  # what is configured cannot be used: nothing was sent
            detail = f"no token can be asked for: {fault}"
            return HoldDestination(Hold.SECRET, ErrorKind.UNAUTHORIZED, detail, wrote=False)
        if isinstance(answer, NoToken):
            return self._refused(account, destination, answer)
        self._secrets().learn(f"oauth:{destination.name}", answer.value)
        now = self._clock.now()
        account.token = Token(answer.value, now, None if answer.life is None else now + answer.life)
        refusal, account.refusal, account.failures = account.refusal, None, 0
        if refusal is not None:
            self.recovered(destination.name, refusal.hold)
        return account.token

    async def _ask(self, account: _Account, destination: Destination, oauth: OAuth, route: Route) -> Bought | NoToken:
        """Ask, and once more in the other form if the server does not know the client in this one."""
        client = self._client(destination, oauth)
        answer = await self._send(destination, oauth, client, route, in_body=account.in_body)
        if isinstance(answer, NoToken) and answer.code == "invalid_client":
            other = await self._send(destination, oauth, client, route, in_body=not account.in_body)
            if isinstance(other, Bought):
                account.in_body = not account.in_body
                return other
        return answer

    def _client(self, destination: Destination, oauth: OAuth) -> tuple[str, str]:
        """Id and secret. Raises SecretUnusable. What is not in [secrets] is redacted from now on, too."""
        secrets = self._secrets()
        client = secrets.fill(oauth.client_id), secrets.fill(oauth.client_secret)
        if not references(oauth.client_secret):
            secrets.learn(f"oauth_client:{destination.name}", client[1])
        secrets.learn(f"oauth_client:{destination.name}", _basic(*client))
        return client

    async def _send(
        self, destination: Destination, oauth: OAuth, client: tuple[str, str], route: Route, *, in_body: bool
    ) -> Bought | NoToken:
        reply = await self._sender.send(_request(oauth, client, in_body), route, timeouts_of(destination), keep=KEPT)
        self.emit(TokenAsked(destination.name, reply.sent_bytes, reply.received_bytes))
        if isinstance(reply, WireFault):
            self._failed()
            return NoToken(f"cannot be reached: {reply.detail}")
        return judge(Answer(reply.status, reply.headers, reply.body))

    def _refused(self, account: _Account, destination: Destination, answer: NoToken) -> HoldDestination:
        account.failures += 1
        # Everybody who may use the destination reads this: not where its token server is.
        detail = f"no token: its token server {answer.detail}"
        if answer.definite:
            pause, hold, duration = STANDS, Hold.UNAUTHORIZED, None
        else:
            pause = max(SECOND, answer.pause or 0, delay(destination.retry, account.failures, self._uniform))
            hold, duration = Hold.TOKEN, pause
        account.again_at = self._clock.now() + pause
        account.refusal = HoldDestination(hold, ErrorKind.UNAUTHORIZED, detail, None, duration, wrote=False)
        return account.refusal


def _basic(client_id: str, client_secret: str) -> str:
    """RFC 6749, section 2.3.1: both are form-encoded first."""
    return base64.b64encode(f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()).decode()


def _request(oauth: OAuth, client: tuple[str, str], in_body: bool) -> WireRequest:
    form = {"grant_type": "client_credentials", **({"scope": oauth.scope} if oauth.scope else {})}
    headers = [("Content-Type", "application/x-www-form-urlencoded"), ("Accept", "application/json")]
    if in_body:
        form |= {"client_id": client[0], "client_secret": client[1]}
    else:
        headers.append(("Authorization", f"Basic {_basic(*client)}"))
    headers.append(("User-Agent", USER_AGENT))
    return WireRequest(method="POST", url=oauth.token_url, headers=tuple(headers), body=urlencode(form).encode())
