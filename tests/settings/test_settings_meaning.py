"""Good documents: what they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from kurir.domain.conditions import MeteredWhenUnknown, NetworkFacts
from kurir.domain.policy import (
    DAY,
    HOUR,
    KIB,
    MIB,
    MINUTE,
    SECOND,
    Access,
    Budget,
    ChangesFeed,
    Classify,
    Collection,
    Destination,
    Jitter,
    Needs,
    Pick,
    Rate,
    RetryPolicy,
    Schedule,
    Topic,
)
from kurir.services.delivering.request import route_of
from kurir.settings import Settings
from kurir.settings.document import Document
from kurir.system.http import check_route
from kurir.system.secrets import SecretKind, SecretSource

Load = Callable[..., Settings]

SERVER = '[destinations.api]\nurl = "https://api.example.com/v2"\n'
ORDERS = SERVER + '[topics.orders]\ndestination = "api"\n'


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "[daemon]\n[limits]\n[topics]\n"])
def test_an_empty_file_means_the_defaults(loaded: Load, text: str) -> None:
    assert loaded(text) == Settings()


def test_a_destination_and_a_topic_need_only_what_has_no_default(loaded: Load) -> None:
    settings = loaded(ORDERS)
    assert settings.destinations == {"api": Destination(name="api", url="https://api.example.com/v2")}
    assert settings.topics == {"orders": Topic(name="orders", destination="api")}


def test_the_defaults_of_schedules_and_resources_are_those_of_the_rules(loaded: Load) -> None:
    settings = loaded(
        ORDERS + '[schedules.beat]\ntopic = "orders"\nevery = "15m"\n'
        '[resources.articles]\ndestination = "api"\npath = "/a/{id}"\nchanges = { path = "/c" }\n'
        '[resources.users]\ndestination = "api"\n'
    )
    assert settings.schedules == {"beat": Schedule(name="beat", topic="orders", every=15 * MINUTE)}
    assert settings.collections == {
        "articles": Collection(name="articles", destination="api", path="/a/{id}", changes=ChangesFeed(path="/c")),
        "users": Collection(name="users", destination="api", path="/users/{id}"),
    }


def test_the_complete_example_of_the_contract_loads(loaded: Load) -> None:
    settings = loaded((Path(__file__).parent / "complete.toml").read_text())
    api = settings.destinations["api"]
    assert api.headers == {"Authorization": "Bearer {secret:api-token}", "X-Device": "edge-17"}
    assert (api.rate, api.attempt_timeout) == (Rate(count=20, per=SECOND), None)
    assert api.oauth is not None
    assert api.oauth.client_secret == "{secret:api-token}"
    assert (api.expect.status, api.expect.json, api.expect.non_empty) == ((200, 201), {"ok": True}, True)
    assert api.classify == {404: Classify.HOLD, 409: Classify.RETRY}
    assert api.budget == Budget(bytes=50 * MIB, per="day", on="metered")
    assert api.retry == RetryPolicy()
    orders = settings.topics["orders"]
    assert (orders.path, orders.expires_in, orders.needs.hours) == ("/sync/events", 7 * DAY, "22:00-06:00")
    assert orders.retry == RetryPolicy(max_attempts=8)
    assert (settings.topics["thumbnails"].local, settings.topics["thumbnails"].lease) == (True, MINUTE)
    beat = settings.schedules["heartbeat"]
    assert (beat.cron, beat.timezone, beat.spread) == ("*/15 * * * *", "Asia/Jakarta", 30 * SECOND)
    assert settings.collections["articles"].changes == ChangesFeed(path="/changes")
    assert settings.secrets == {"api-token": SecretSource(kind=SecretKind.FILE, where="/etc/kurir/api.token")}
    without = Settings(
        secrets=settings.secrets,
        destinations=settings.destinations,
        topics=settings.topics,
        schedules=settings.schedules,
        collections=settings.collections,
    )
    assert settings == without  # the example shows the defaults everywhere else


def test_every_key_that_is_known_is_in_the_complete_example() -> None:
    """The other way round the test above has it: what the example says is known. Here: what is known is shown."""
    text = (Path(__file__).parent / "complete.toml").read_text() + 'proxy = "http://…"'
    known = {field.encode_name for table in _tables(Document) for field in msgspec.structs.fields(table)}
    assert {name for name in known if name not in text} == set()


def _tables(kind: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
    found = {kind}
    schema = msgspec.inspect.type_info(kind)
    pending = [schema]
    while pending:
        info = pending.pop()
        if isinstance(info, msgspec.inspect.StructType):
            found.add(info.cls)
            pending += [field.type for field in info.fields]
        elif isinstance(info, msgspec.inspect.DictType):
            pending.append(info.value_type)
        elif isinstance(info, msgspec.inspect.UnionType):
            pending += info.types
        elif isinstance(info, msgspec.inspect.Metadata):
            pending.append(info.type)
    return found


def test_a_topic_overrides_the_retry_of_its_destination_key_by_key(loaded: Load) -> None:
    settings = loaded(
        SERVER + 'retry = { base = "1s", cap = "10m", max_attempts = 3, give_up_after = "" }\n'
        '[topics.a]\ndestination = "api"\nretry = { cap = "1h", jitter = "none" }\n'
        '[topics.b]\ndestination = "api"\nretry = { schedule = ["0s", "10s", "1m"], give_up_after = "1d" }\n'
        '[topics.c]\nconsumer = "local"\nretry = { max_attempts = 9 }\n'
    )
    under = RetryPolicy(base=SECOND, cap=10 * MINUTE, max_attempts=3, give_up_after=None)
    assert settings.destinations["api"].retry == under
    assert settings.topics["a"].retry == RetryPolicy(
        base=SECOND, cap=HOUR, jitter=Jitter.NONE, max_attempts=3, give_up_after=None
    )
    assert settings.topics["b"].retry == RetryPolicy(
        base=SECOND, cap=10 * MINUTE, max_attempts=3, give_up_after=DAY, schedule=(0, 10 * SECOND, MINUTE)
    )
    assert settings.topics["c"].retry == RetryPolicy(max_attempts=9)


def test_every_choice_of_a_topic_reaches_its_value(loaded: Load) -> None:
    settings = loaded(
        ORDERS + 'collapse = "latest"\norder = "newest"\nconcurrency = 2\nrate = "5/h"\n'
        'needs = { network = "ssid:Café 5", power = "not_low" }\nallow = ["alice", "@staff"]\noverridable = ["path"]\n'
        'path = "/write?bucket=b&precision=s"\npriority = -100\n'
    )
    orders = settings.topics["orders"]
    assert (orders.collapse, orders.order, orders.concurrency) == (True, Pick.NEWEST, 2)
    assert orders.rate == Rate(count=5, per=HOUR)
    assert orders.needs == Needs(network="ssid:Café 5", power="not_low")
    assert (orders.allow, orders.overridable, orders.priority) == (("alice", "@staff"), ("path",), -100)
    assert (orders.path, orders.query) == ("/write", "bucket=b&precision=s")


def test_the_process_has_its_values(loaded: Load) -> None:
    settings = loaded(
        '[metrics]\nlisten = "[::1]:9000"\n[network]\nmetered_when_unknown = "yes"\nreconnect_spread = "0s"\n'
        '[limits]\nqueue_bytes = "1GiB"\n[retention]\nresult_bytes = "1KiB"\n[clock]\ntrust = "never"\n'
        '[alerts]\ncommand = ["/usr/bin/tell", "me"]\n[cache]\nbytes = "0B"\n[power]\nlow_battery = 20\n'
        '[access]\nadhoc_deny = ["loopback", "10.0.0.0/8", "fd00::/8", "192.0.2.1"]\n'
    )
    assert settings.metrics_listen == ("::1", 9000)
    assert settings.network.metered_when_unknown is MeteredWhenUnknown.YES
    assert settings.network.reconnect_spread == 0
    assert (settings.limits.queue_bytes, settings.retention.result_bytes) == (1024 * MIB, KIB)
    assert (settings.clock_trust, settings.alerts.command) == ("never", ("/usr/bin/tell", "me"))
    assert (settings.cache.bytes, settings.power.low_battery) == (0, 20)
    assert settings.access.adhoc_deny == ("loopback", "10.0.0.0/8", "fd00::/8", "192.0.2.1")


@pytest.mark.parametrize(
    ("text", "address"),
    [("", None), ("127.0.0.1:0", ("127.0.0.1", 0)), ("localhost:9756", ("localhost", 9756)), ("[::]:1", ("::", 1))],
)
def test_metrics_listen_where_they_are_told_to(loaded: Load, text: str, address: tuple[str, int] | None) -> None:
    assert loaded(f'[metrics]\nlisten = "{text}"\n').metrics_listen == address


def test_the_state_directory_is_what_the_file_says_then_the_environment_then_ours(loaded: Load) -> None:
    explicit = '[daemon]\nstate_dir = "/srv/a"\nruntime_dir = "/srv/r"\n'
    both = {"STATE_DIRECTORY": "/env/one:/env/two", "RUNTIME_DIRECTORY": "/env/r"}
    assert loaded(explicit, **both).daemon.state_dir == Path("/srv/a")
    assert loaded(explicit, **both).daemon.runtime_dir == Path("/srv/r")
    assert loaded("", **both).daemon.state_dir == Path("/env/one")
    assert loaded("", **both).daemon.runtime_dir == Path("/env/r")
    assert loaded("", STATE_DIRECTORY="").daemon.state_dir == Path("/var/lib/kurir")
    assert loaded('[daemon]\nstate_dir = "/var/lib/kurir"\n', **both).daemon.state_dir == Path("/var/lib/kurir")


def test_secrets_may_stand_in_headers_and_in_the_credentials_of_oauth(loaded: Load) -> None:
    settings = loaded(
        '[secrets]\nt = { env = "T" }\nu = { credential = "u" }\n'
        '[destinations.board]\nurl = "https://h/base"\nproxy = "http://me:pass@proxy:3128"\n'
        'headers = { Authorization = "{secret:oauth}", Host = "inside" }\n'
        'oauth = { token_url = "https://h/t", client_id = "{secret:t}", client_secret = "{secret:u}" }\n'
        '[topics.a]\ndestination = "board"\npath = "/api/v1/telemetry?k=1"\n'
        'headers = { X-A = "{secret:oauth}" }\n'
    )
    assert settings.topics["a"].path == "/api/v1/telemetry"
    assert settings.topics["a"].query == "k=1"
    assert settings.topics["a"].headers == {"X-A": "{secret:oauth}"}
    assert settings.secrets["u"] == SecretSource(kind=SecretKind.CREDENTIAL, where="u")


@pytest.mark.parametrize("written", ["HTTPS://api.example.com/V2", "Https://api.example.com/V2"])
def test_the_scheme_of_a_url_is_taken_in_any_case_and_sent_in_lower_case(loaded: Load, written: str) -> None:
    settings = loaded(f'[destinations.api]\nurl = "{written}"\nproxy = "HTTP://proxy:3128"\n')
    api = settings.destinations["api"]
    assert (api.url, api.proxy) == ("https://api.example.com/V2", "http://proxy:3128")
    check_route(route_of(api, Needs(), NetworkFacts(), Access(adhoc_deny=())))


def test_settings_cannot_be_changed(loaded: Load) -> None:
    settings = loaded(ORDERS)
    with pytest.raises(FrozenInstanceError):
        settings.clock_trust = "never"  # type: ignore[misc] # that it cannot is what is tested
    with pytest.raises(TypeError):
        settings.topics["x"] = Topic(name="x")  # type: ignore[index] # likewise


def test_each_table_and_each_key_of_it_is_described_where_it_stands() -> None:
    for table in _tables(Document):
        assert table.__doc__
        for name, kind in get_type_hints(table, include_extras=True).items():
            described = [meta for meta in getattr(kind, "__metadata__", ()) if meta.description]
            holds_tables = "Table" in repr(kind)
            assert described or holds_tables, f"{table.__name__}.{name}"


def test_names_of_directory_services_are_people_too(loaded: Load) -> None:
    people = ("1000", "alice@example.com", "REALM\\bob", "@domain-users", "host$")
    assert loaded(ORDERS + f"allow = {json.dumps(people)}\n").topics["orders"].allow == people
