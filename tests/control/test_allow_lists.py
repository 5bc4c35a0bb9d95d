"""The lists of an operator (`allow`, `overridable`, `outbox`, `consumers`), asked by processes of real users.

Each list with each kind of user, against a table that is written by hand.
"""

from __future__ import annotations

import grp
import itertools
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import pytest

from kurir.domain.policy import Access, Destination, Topic
from support.control import Control, control
from support.engine import registry
from support.users import User, needs_root

GAMES = pwd.getpwnam("games")  # a user and a group that every Debian has, and nobody is
GROUP = grp.getgrnam("games").gr_gid
ADMINS = grp.getgrnam("daemon").gr_gid

USERS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "plain": (61_001, 61_001, ()),
    "games": (GAMES.pw_uid, 61_002, ()),  # known by name, in no group of that name
    "primary": (61_003, GROUP, ()),
    "supplementary": (61_004, 61_004, (61_005, GROUP)),
    "numbered group": (61_006, 61_006, (61_007,)),
    "root": (0, 0, ()),
    "admin": (61_008, ADMINS, ()),
}
ADMINISTRATORS = {"root", "admin"}

LISTS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "empty": ((), set()),
    "all": (("*",), {"plain", "games", "primary", "supplementary", "numbered group"}),
    "a-name": (("games",), {"games"}),
    "a-number": (("61001",), {"plain"}),
    "number-of-a-named": ((str(GAMES.pw_uid),), {"games"}),
    "a-group": (("@games",), {"primary", "supplementary"}),
    "a-numbered-group": (("@61007",), {"numbered group"}),
    "own-group": (("@61001",), {"plain"}),
    "several": (("nosuchuser", "@nosuchgroup", "61001", "@61007"), {"plain", "numbered group"}),
    "strangers": (("nosuchuser", "@nosuchgroup", "root", "@*", "61"), set()),
}


def expected(name: str) -> set[str]:
    return LISTS[name][1] | ADMINISTRATORS


@asynccontextmanager
async def serving() -> AsyncIterator[Control]:
    """A topic, a local topic and a destination for each list."""
    more: list[Topic | Destination] = []
    for name, (people, _) in LISTS.items():
        more.append(Topic(name=f"t-{name}", destination="api", path="/t", allow=people))
        more.append(Topic(name=f"local-{name}", local=True, consumers=people))
        more.append(Destination(name=f"d-{name}", url="http://127.0.0.1:9", outbox=people))
    more += [
        Topic(name="o-" + "-".join(chosen), destination="api", path="/base", overridable=chosen)
        for count in range(4)
        for chosen in itertools.combinations(("path", "query", "headers"), count)
    ]
    config = replace(registry(allow=()), access=Access(admin_groups=("daemon",), adhoc="any", adhoc_deny=()))
    config = replace(
        config,
        topics=MappingProxyType({**config.topics, **{one.name: one for one in more if isinstance(one, Topic)}}),
        destinations=MappingProxyType(
            {**config.destinations, **{one.name: one for one in more if isinstance(one, Destination)}}
        ),
    )
    # Not in pytest's own folder, which is closed to other users.
    with TemporaryDirectory(prefix="kurir-lists-") as folder:
        async with control(Path(folder), config) as served:
            served.services.gates.paused_destinations.update(config.destinations)
            yield served


@asynccontextmanager
async def user(served: Control, name: str) -> AsyncIterator[User]:
    uid, gid, groups = USERS[name]
    one = await User.of(served.path, uid, gid, groups)
    try:
        yield one
    finally:
        await one.end()


@needs_root
@pytest.mark.parametrize("who", USERS)
async def test_who_is_on_the_allow_list_of_a_topic_may_submit_by_every_way_and_nobody_else(who: str) -> None:
    async with serving() as served, user(served, who) as one:
        seen = {topic["name"] for topic in (await one.ask("GET", "/v1/topics"))[1]["topics"]}
        for name in LISTS:
            allowed, topic = who in expected(name), f"t-{name}"
            ways = {
                "one": await one.ask("POST", "/v1/jobs", {"topic": topic}),
                "raw": await one.ask("POST", f"/v1/topics/{topic}/jobs", {}),
                "schedule": await one.ask("PUT", f"/v1/schedules/s-{name}", {"topic": topic, "every": "1d"}),
            }
            for way, (status, document) in ways.items():
                assert (status in (200, 201)) is allowed, (way, name, status, document)
                if not allowed:
                    assert (status, document["code"]) == (403, "forbidden"), (way, name)
            assert (topic in seen) is allowed, name


@needs_root
@pytest.mark.parametrize("who", USERS)
async def test_who_is_on_the_outbox_list_of_a_destination_may_relay_and_sees_it_and_nobody_else(who: str) -> None:
    async with serving() as served, user(served, who) as one:
        seen = {found["name"] for found in (await one.ask("GET", "/v1/destinations"))[1]["destinations"]}
        for name in LISTS:
            status, document = await one.ask("POST", f"/v1/outbox/d-{name}/x", {})
            if who in expected(name):
                assert (status, document["owner"]) == (202, USERS[who][0]), name
            else:
                assert (status, document["code"]) == (403, "forbidden"), name
            assert (f"d-{name}" in seen) is (who in expected(name)), name


@needs_root
@pytest.mark.parametrize("who", USERS)
async def test_who_is_on_the_consumers_list_leases_everybodys_jobs_and_others_their_own(who: str) -> None:
    async with serving() as served, user(served, "plain") as owner, user(served, who) as one:
        for name in LISTS:
            status, job = await owner.ask("POST", "/v1/jobs", {"topic": f"local-{name}", "payload": 1})
            assert status == 201, job
            status, leased = await one.ask("POST", f"/v1/topics/local-{name}/lease", {"max": 5})
            found = [one["id"] for one in leased["jobs"]]
            assert (status, found) == (200, [job["id"]] if who in expected(name) or who == "plain" else []), name


@needs_root
@pytest.mark.parametrize("who", ["plain", "root"])
async def test_a_job_sets_itself_what_its_topic_lets_it_and_nothing_else(who: str) -> None:
    said = {"path": "/own", "query": "q=1", "headers": {"X-Own": "1"}}
    async with serving() as served, user(served, who) as one:
        for topic, member in itertools.product(
            [name for name in served.services.gates.registry.topics if name.startswith("o-")], said
        ):
            allowed = member in topic.split("-")
            status, document = await one.ask("POST", "/v1/jobs", {"topic": topic, member: said[member]})
            _, plain = await one.ask("POST", "/v1/jobs", {"topic": topic})
            edited, refused = await one.ask("PATCH", f"/v1/jobs/{plain['id']}", {member: said[member]})
            if allowed:
                assert (status, edited) == (201, 200), (topic, member, document, refused)
            else:
                assert (status, document["code"], document["field"]) == (403, "override_forbidden", member), topic
                assert (edited, refused["code"], refused["field"]) == (403, "override_forbidden", member), topic


@needs_root
async def test_the_overflow_user_is_on_no_list_not_even_that_of_everybody() -> None:
    async with serving() as served:
        nobody = await User.of(served.path, served.server._peers.overflow)
        for method, target, body in (
            ("POST", "/v1/jobs", {"topic": "t-all"}),
            ("POST", "/v1/outbox/d-all/x", {}),
            ("POST", "/v1/topics/local-all/lease", {}),
            ("GET", "/v1/secrets", None),
            ("PUT", "/v1/secrets/token", {"value": "v", "origins": ["https://h"]}),
            ("POST", "/v1/jobs", {"url": "http://127.0.0.1:9/"}),
        ):
            status, document = await nobody.ask(method, target, body)
            assert (status, document["code"]) == (403, "unknown_peer"), target
        await nobody.end()


@needs_root
@pytest.mark.parametrize(
    ("policy", "plain", "secure"),
    [("none", (403, "forbidden"), (403, "forbidden")), ("https", (422, "invalid"), 201), ("any", 201, 201)],
)
async def test_jobs_with_their_own_url_go_as_far_as_access_adhoc_says_for_everybody(
    policy: str, plain: object, secure: object
) -> None:
    async with serving() as served:
        gates = served.services.gates
        gates.adopt(replace(gates.registry, access=replace(gates.registry.access, adhoc=policy)))
        for who in ("plain", "root"):
            async with user(served, who) as one:
                for scheme, wanted in (("http", plain), ("https", secure)):
                    status, document = await one.ask("POST", "/v1/jobs", {"url": f"{scheme}://127.0.0.1:9/x"})
                    found = status if status == 201 else (status, document["code"])
                    assert found == wanted, (who, scheme, document)
