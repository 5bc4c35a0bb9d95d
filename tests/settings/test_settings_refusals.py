"""Bad documents: each problem is named by its full key and says what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Refuse = Callable[..., list[tuple[str, str]]]

SERVER = '[destinations.api]\nurl = "https://api.example.com/v2"\n'
ORDERS = SERVER + '[topics.orders]\ndestination = "api"\n'
SECRET = '[secrets]\nt = { env = "T" }\n'


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("[deamon]\n", "deamon", "daemon"),
        ("[limits]\nqueue_job = 1\n", "limits.queue_job", "queue_jobs"),
        (SERVER + "concurency = 1\n", "destinations.api.concurency", "concurrency"),
        (SERVER + "retry = { max_atempts = 1 }\n", "destinations.api.retry.max_atempts", "max_attempts"),
        (ORDERS + "needs = { netwerk = 'any' }\n", "topics.orders.needs.netwerk", "network"),
        ('[destinations."a b"]\nurl = "https://h"\nUrl = 1\n', 'destinations."a b".Url', "url"),
        ("[secrets]\nt = { fil = '/x' }\n", "secrets.t.fil", "file"),
    ],
)
def test_an_unknown_key_is_named_in_full_with_the_nearest_known_one(
    refused: Refuse, text: str, key: str, near: str
) -> None:
    problems = dict(refused(text))
    assert problems[key] == f"there is no such key; did you mean {near}?"


WRONG_TYPES = [
    ("[daemon]\nstop_grace = 10\n", "daemon.stop_grace", "not a string"),
    ("[daemon]\nstop_grace = '10'\n", "daemon.stop_grace", "not a duration"),
    ("[daemon]\nstop_grace = '99999d'\n", "daemon.stop_grace", "too long"),
    ("[daemon]\nallow_network_fs = 'yes'\n", "daemon.allow_network_fs", "true or false"),
    ("[daemon]\nlog_level = 'loud'\n", "daemon.log_level", "none of debug, info, warning, error"),
    ("[daemon]\nlog_level = true\n", "daemon.log_level", "expected a string"),
    ("daemon = 5\n", "daemon", "expected a table, got 5"),
    ("daemon = []\n", "daemon", "expected a table, got a list"),
    ("topics = 1979-05-27\n", "topics", "xpected"),
    ("[topics]\norders = 'x'\n", "topics.orders", "expected a table, got a string"),
    ("[limits]\nin_flight = true\n", "limits.in_flight", "expected a whole number"),
    ("[limits]\nin_flight = 1.0\n", "limits.in_flight", "expected a whole number"),
    ("[limits]\nin_flight = nan\n", "limits.in_flight", "expected a whole number"),
    ("[limits]\nin_flight = inf\n", "limits.in_flight", "expected a whole number"),
    ("[limits]\nin_flight = 0\n", "limits.in_flight", ">= 1"),
    ("[limits]\nin_flight = -1\n", "limits.in_flight", ">= 1"),
    ("[limits]\nqueue_jobs = 99999999999999999999999999\n", "limits.queue_jobs", "<="),
    ("[limits]\nqueue_bytes = 1024\n", "limits.queue_bytes", "not a string"),
    ("[limits]\nqueue_bytes = '512MB'\n", "limits.queue_bytes", "not a size"),
    ("[access]\nadmin_groups = 'wheel'\n", "access.admin_groups", "expected a list"),
    ("[access]\nadmin_groups = ['a', 1]\n", "access.admin_groups[1]", "expected a string"),
    ("[power]\nlow_battery = 101\n", "power.low_battery", "<= 100"),
    ("[destinations.api]\n", "destinations.api.url", "missing"),
    (SERVER + "headers = { X = 1 }\n", "destinations.api.headers.X", "expected a string"),
    (SERVER + "headers = 'X: 1'\n", "destinations.api.headers", "expected"),
    (SERVER + "rate = '20 per s'\n", "destinations.api.rate", "not a rate"),
    (SERVER + "concurrency = 0\n", "destinations.api.concurrency", ">= 1"),
    (SERVER + "connect_timeout = '0s'\n", "destinations.api.connect_timeout", "no time at all"),
    (SERVER + "classify = { '404' = 'ignore' }\n", "destinations.api.classify.404", "none of done, retry, dead"),
    (SERVER + "retry = { jitter = 'some' }\n", "destinations.api.retry.jitter", "none of full, equal, none"),
    (SERVER + "retry = { max_attempts = 0 }\n", "destinations.api.retry.max_attempts", ">= 1"),
    (SERVER + "retry = { schedule = ['1s', 'x'] }\n", "destinations.api.retry.schedule[1]", "not a duration"),
    (SERVER + "budget = { per = 'day' }\n", "destinations.api.budget.bytes", "missing"),
    (SERVER + "budget = 5\n", "destinations.api.budget", "expected a table"),
    (SERVER + "expect = { status = [99] }\n", "destinations.api.expect.status[0]", ">= 100"),
    (SERVER + "oauth = { token_url = 'https://h' }\n", "destinations.api.oauth.client_id", "missing"),
    (ORDERS + "priority = 101\n", "topics.orders.priority", "<= 100"),
    (ORDERS + "priority = -101\n", "topics.orders.priority", ">= -100"),
    (ORDERS + "ordering = 'fifo'\n", "topics.orders.ordering", "none of none, key, topic"),
    (ORDERS + "overridable = ['path', 'url']\n", "topics.orders.overridable[1]", '"url" is none of path, query'),
    (ORDERS + "expires_in = '0s'\n", "topics.orders.expires_in", "no time at all"),
    (ORDERS + "consumer = 'remote'\n", "topics.orders.consumer", "none of local"),
    ("[schedules.a]\nevery = '1m'\n", "schedules.a.topic", "missing"),
]


@pytest.mark.parametrize(("text", "key", "reason"), WRONG_TYPES)
def test_a_value_of_the_wrong_kind_or_range_is_named(refused: Refuse, text: str, key: str, reason: str) -> None:
    problems = dict(refused(text))
    assert reason in problems[key]


NAMES = [
    ('[destinations."outbox:api"]\nurl = "https://h"\n', 'destinations."outbox:api"', "outbox relay"),
    ('[destinations.adhoc]\nurl = "https://h"\n', "destinations.adhoc", "carry their own URL"),
    ('[topics.adhoc]\nconsumer = "local"\n', "topics.adhoc", "carry their own URL"),
    ('[topics."outbox:x"]\nconsumer = "local"\n', 'topics."outbox:x"', "outbox relay"),
    ('[topics."a/b"]\nconsumer = "local"\n', 'topics."a/b"', "1 to 64 letters"),
    ('[topics."\\u0000"]\nconsumer = "local"\n', 'topics."\\u0000"', "1 to 64 letters"),
    ('[topics.""]\nconsumer = "local"\n', 'topics.""', "1 to 64 letters"),
    ('[topics."..."]\nconsumer = "local"\n', 'topics."..."', "begin with"),
    ("[secrets]\noauth = { env = 'X' }\n", "secrets.oauth", "reserved"),
    ("[secrets]\n'a b' = { env = 'X' }\n", 'secrets."a b"', "1 to 64 letters"),
]
REFERENCES = [
    ("[topics.a]\n", "topics.a", "exactly one of destination and consumer"),
    (SERVER + "[topics.a]\ndestination = 'api'\nconsumer = 'local'\n", "topics.a", "exactly one of"),
    (SERVER + "[topics.a]\ndestination = 'apo'\n", "topics.a.destination", "no such destination"),
    ("[topics.a]\nconsumer = 'local'\npath = '/x'\n", "topics.a.path", "pulled, not sent"),
    (ORDERS + "lease = '5s'\n", "topics.orders.lease", "sent, not pulled"),
    ("[schedules.a]\ntopic = 'x'\nevery = '1m'\n", "schedules.a.topic", "no such topic"),
    ("[resources.a]\ndestination = 'x'\n", "resources.a.destination", "no such destination"),
    ("[secrets]\nt = {}\n", "secrets.t", "exactly one of file, credential and env"),
    ("[secrets]\nt = { file = '/a', env = 'B' }\n", "secrets.t", "exactly one of file, credential and env"),
    ("[secrets]\nt = { file = 'a' }\n", "secrets.t.file", "not an absolute path"),
    ("[secrets]\nt = { file = '' }\n", "secrets.t.file", "not an absolute path"),
    ("[secrets]\nt = { credential = '../a' }\n", "secrets.t.credential", "not the name of a credential"),
    ("[secrets]\nt = { env = 'A=B' }\n", "secrets.t.env", "not the name of an environment variable"),
]
SECRETS = [
    (SERVER + "headers = { A = '{secret:x}' }\n", "destinations.api.headers.A", "secret x, which is not in"),
    (SECRET + SERVER + "headers = { A = '{secret:t' }\n", "destinations.api.headers.A", "without a name"),
    (SECRET + SERVER + "headers = { A = '{secret:}' }\n", "destinations.api.headers.A", "without a name"),
    (SECRET + SERVER + "headers = { A = '{secret:t}{secret: t}' }\n", "destinations.api.headers.A", "without a name"),
    (SERVER + "headers = { A = '{secret:oauth}' }\n", "destinations.api.headers.A", "has no oauth"),
    (ORDERS + "headers = { A = '{secret:oauth}' }\n", "topics.orders.headers.A", "has no oauth"),
    (SECRET + ORDERS + "path = '/{secret:t}'\n", "topics.orders.path", "put the secret in a header"),
    (SECRET + ORDERS + "path = '/a?k={secret:t}'\n", "topics.orders.path", "put the secret in a header"),
    (SECRET + SERVER + "proxy = 'http://me:{secret:t}@h:1'\n", "destinations.api.proxy", "not resolved here"),
    (ORDERS + "content_type = 'a/b; x={secret:t}'\n", "topics.orders.content_type", "not resolved here"),
    (
        ORDERS + "[schedules.a]\ntopic='orders'\nevery='1m'\npayload='\"{secret:t}\"'\n",
        "schedules.a.payload",
        "not res",
    ),
    (SECRET + "[destinations.a]\nurl = 'https://h/{secret:t}/'\n", "destinations.a.url", "put the secret in a header"),
]


@pytest.mark.parametrize(("text", "key", "reason"), NAMES + REFERENCES + SECRETS)
def test_a_name_or_reference_that_cannot_be_is_named(refused: Refuse, text: str, key: str, reason: str) -> None:
    problems = dict(refused(text))
    assert reason in problems[key]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.example.com",
        "ftp://h",
        "file:///etc/passwd",
        "HTTPS//h",
        "https://",
        "https:///path",
        "https://user@h",
        "https://user:pass@h/",
        "https://:@h/",
        "https://h?x=1",
        "https://h/?",
        "https://h/#",
        "https://h/#a",
        "https://h:0",
        "https://h:99999",
        "https://h:x",
        "https://h:",
        "https://h//a",
        "https://h/../a",
        "https://h/a/%2e%2E/b",
        "https://h/a/.%2e",
        "https://h/a%2f..%2fb",
        "https://h/a\\\\b",
        "https://h/a b",
        "https://h/a\\tb",
        "https://h/a\\u0000",
        "https://h/ä",
        "https://bücher.example/",
        "https://h/%zz",
        "https://0x7f.1/",
        "https://127.1/",
        "https://h/..;x/a",
        "https://h/%2",
        "https://[::1",
        "https://[127.0.0.1]/",
        "https://[fe80::1%25eth0]/",
        "https://1.2.3/",
        "https://256.1.1.1/",
        "https://a..b/",
        "https://-a/",
        "https://h/{x}",
        "https://h\\n.evil/",
        " https://h",
    ],
)
def test_a_url_that_two_programs_might_read_differently_is_refused(refused: Refuse, url: str) -> None:
    problems = refused(f'[destinations.api]\nurl = "{url}"\n')
    assert [key for key, _ in problems] == ["destinations.api.url"]


@pytest.mark.parametrize(
    "url",
    ["http://h", "https://h:8443/a/b/", "http://127.0.0.1:1", "http://[::1]:80/x", "https://h/%41~a@:b", "http://a_b"],
)
def test_a_plain_url_is_taken(loaded: Callable[..., object], url: str) -> None:
    loaded(f'[destinations.api]\nurl = "{url}"\n')


@pytest.mark.parametrize(
    "path", ["x", "//h", "/a/../b", "/%2e%2e", "/a#b", "/a b", "/a\\\\b", "/é", "?a=1", "/a%", "/."]
)
def test_a_path_that_could_leave_its_base_is_refused(refused: Refuse, path: str) -> None:
    problems = refused(ORDERS + f'path = "{path}"\n')
    assert [key for key, _ in problems] == ["topics.orders.path"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X Y", "1"),
        ("", "1"),
        ("X:", "1"),
        ("Ü", "1"),
        ("X\\r\\nEvil", "1"),
        ("X", "a\\r\\nEvil: 1"),
        ("X", "a\\nb"),
        ("X", "a\\u0000"),
        ("X", "\\u007f"),
        ("X", "\\u0085"),
        ("X", " a"),
        ("X", "a\\t"),
        ("Content-Length", "1"),
        ("transfer-encoding", "chunked"),
        ("CONNECTION", "close"),
        ("Keep-Alive", "1"),
        ("TE", "trailers"),
        ("Trailer", "X"),
        ("Upgrade", "h2c"),
        ("Expect", "100-continue"),
        ("Proxy-Authorization", "x"),
        ("Kurir-Attempt", "1"),
        ("Content-Type", "text/plain"),
        ("Idempotency-key", "1"),
    ],
)
@pytest.mark.parametrize("where", ["destination", "topic"])
def test_e13_headers_that_smuggle_or_frame_are_refused_by_name(
    refused: Refuse, where: str, name: str, value: str
) -> None:
    header = f'headers = {{ "{name}" = "{value}" }}\n'
    text = SERVER + header if where == "destination" else ORDERS + header
    (key, reason), *rest = refused(text)
    assert key.startswith("destinations.api.headers." if where == "destination" else "topics.orders.headers.")
    assert not rest
    assert "Evil: 1" not in reason


def test_a_topic_cannot_set_the_host_or_the_key_of_its_destination(refused: Refuse) -> None:
    text = SERVER + 'idempotency_header = "X-Request-Id"\n[topics.a]\ndestination = "api"\n'
    assert dict(refused(text + 'headers = { x-request-id = "1" }\n')).keys() == {"topics.a.headers.x-request-id"}
    assert dict(refused(text + 'headers = { Host = "h" }\n')).keys() == {"topics.a.headers.Host"}


OTHERS = [
    (SERVER + "headers = { A = '1', a = '2' }\n", "destinations.api.headers.a", "set twice"),
    (SERVER + "idempotency_header = 'Content-Length'\n", "destinations.api.idempotency_header", "never settable"),
    (SERVER + "idempotency_header = 'Authorization'\n", "destinations.api.idempotency_header", "another meaning"),
    (SERVER + "idempotency_header = ''\n", "destinations.api.idempotency_header", "not a token"),
    (SERVER + "proxy = 'https://p'\n", "destinations.api.proxy", "over http"),
    (SERVER + "proxy = 'socks5://p'\n", "destinations.api.proxy", "begins with http"),
    (SERVER + "proxy = 'http://p/x'\n", "destinations.api.proxy", "no path"),
    (SERVER + "classify = { '99' = 'done' }\n", "destinations.api.classify.99", "100 to 599"),
    (SERVER + "classify = { '600' = 'done' }\n", "destinations.api.classify.600", "100 to 599"),
    (SERVER + "classify = { '4xx' = 'done' }\n", "destinations.api.classify.4xx", "100 to 599"),
    (SERVER + "tls = { key = '/k' }\n", "destinations.api.tls.key", "without cert"),
    (SERVER + "tls = { ca = 'ca.pem' }\n", "destinations.api.tls.ca", "absolute"),
    ("[destinations.a]\nurl = 'http://h'\ntls = { ca = '/c' }\n", "destinations.a.tls", "plain http"),
    (SERVER + "retry = { base = '2h' }\n", "destinations.api.retry.base", "cap must not be less"),
    (SERVER + "retry = { schedule = ['1s', '0s'] }\n", "destinations.api.retry.schedule", "last delay repeats"),
    (SERVER + "breaker = { probe_every = '1h' }\n", "destinations.api.breaker.probe_every", "exceeds probe_cap"),
    (SERVER + "budget = { bytes = '0B' }\n", "destinations.api.budget.bytes", "nothing could ever"),
    (SERVER + "expect = { json = { a = nan } }\n", "destinations.api.expect.json.a", "no such value"),
    (SERVER + "expect = { json = { a = [inf] } }\n", "destinations.api.expect.json.a", "no such value"),
    (SERVER + "expect = { json = { a = 1979-05-27 } }\n", "destinations.api.expect.json.a", "no such value"),
    (SERVER + "expect = { content_type = 'json' }\n", "destinations.api.expect.content_type", "media type"),
    (SERVER + "expect = { header = { 'a b' = '' } }\n", 'destinations.api.expect.header."a b"', "token"),
    (SERVER + "outbox = ['*', '@']\n", "destinations.api.outbox[1]", "neither a user nor a group"),
    (
        SERVER + "oauth = { token_url='https://h', client_id='', client_secret='x' }\n",
        "destinations.api.oauth.client_id",
        "empty",
    ),
    (ORDERS + "method = 'CONNECT'\n", "topics.orders.method", "delivers nothing"),
    (ORDERS + "method = 'post'\n", "topics.orders.method", "capitals"),
    (ORDERS + "method = 'A B'\n", "topics.orders.method", "capitals"),
    (ORDERS + "content_type = 'json'\n", "topics.orders.content_type", "media type"),
    (ORDERS + "allow = ['a b']\n", "topics.orders.allow[0]", "neither"),
    ("[topics.a]\nconsumer = 'local'\nconsumers = ['*']\n", "topics.a.consumers[0]", "neither"),
    ("[metrics]\nlisten = 'a/b:1'\n", "metrics.listen", "begin with a host"),
    ("[metrics]\nlisten = 'u@a:1'\n", "metrics.listen", "begin with a host"),
    ("[metrics]\nlisten = 'a:1:1'\n", "metrics.listen", "begin with a host"),
    ("[metrics]\nlisten = '[::1]:1:1'\n", "metrics.listen", "begin with a host"),
    ("[access]\nadhoc_deny = ['private']\n", "access.adhoc_deny[0]", "no network such as"),
    (ORDERS + "needs = { network = 'ssid:' }\n", "topics.orders.needs.network", "none of any"),
    (ORDERS + "needs = { network = 'wifi' }\n", "topics.orders.needs.network", "none of any"),
    (ORDERS + "needs = { network = 'interface:a/b' }\n", "topics.orders.needs.network", "none of any"),
    (ORDERS + "needs = { network = 'interface:0123456789abcdef' }\n", "topics.orders.needs.network", "none of any"),
    (ORDERS + "needs = { hours = '22-06' }\n", "topics.orders.needs.hours", "local time"),
    (ORDERS + "needs = { hours = '06:00-06:00' }\n", "topics.orders.needs.hours", "empty"),
    ("[access]\ngroup = '@x'\n", "access.group", "not the name of a group"),
    ("[access]\nadhoc_deny = ['local']\n", "access.adhoc_deny[0]", "no network such as"),
    ("[access]\nadhoc_deny = ['10.0.0.1/8']\n", "access.adhoc_deny[0]", "host bits"),
    ("[metrics]\nlisten = '9756'\n", "metrics.listen", "address and a port"),
    ("[metrics]\nlisten = ':9756'\n", "metrics.listen", "does not begin with a host"),
    ("[metrics]\nlisten = '::1:9756'\n", "metrics.listen", "[::1]:9756"),
    ("[metrics]\nlisten = '[::1]'\n", "metrics.listen", "address and a port"),
    ("[metrics]\nlisten = '127.0.0.1:65536'\n", "metrics.listen", "address and a port"),
    ("[metrics]\nlisten = '[x]:1'\n", "metrics.listen", "begin with a host"),
    ("[alerts]\ncommand = ['tell']\n", "alerts.command[0]", "absolute"),
    ("[alerts]\ncommand = ['/x', \"a\\u0000\"]\n", "alerts.command[1]", "NUL"),
    ("[daemon]\nstate_dir = 'var'\n", "daemon.state_dir", "absolute"),
    ('[daemon]\nruntime_dir = "/a\\u0000"\n', "daemon.runtime_dir", "NUL"),
    (ORDERS + "[schedules.a]\ntopic = 'orders'\n", "schedules.a", "exactly one of cron and every"),
    (ORDERS + "[schedules.a]\ntopic = 'orders'\ncron = '* * * * *'\nevery = '1m'\n", "schedules.a", "exactly one"),
    (ORDERS + "[schedules.a]\ntopic = 'orders'\nevery = '9s'\n", "schedules.a.every", "too often"),
    (ORDERS + "[schedules.a]\ntopic = 'orders'\ncron = '* * * *'\n", "schedules.a.cron", "five fields"),
    (ORDERS + "[schedules.a]\ntopic = 'orders'\ncron = '* * * * ;'\n", "schedules.a.cron", "five fields"),
    (ORDERS + "[schedules.a]\ntopic = 'orders'\ncron = '61 * * * *'\n", "schedules.a.cron", "Bad minute"),
    (ORDERS + "[schedules.a]\ntopic = 'orders'\ncron = '0 0 30 2 *'\n", "schedules.a.cron", "not a cron"),
    (ORDERS + "[schedules.a]\ntopic='orders'\nevery='1m'\ntimezone='Mars/X'\n", "schedules.a.timezone", "no such time"),
    (ORDERS + "[schedules.a]\ntopic='orders'\nevery='1m'\ntimezone='../x'\n", "schedules.a.timezone", "no such time"),
    (ORDERS + "[schedules.a]\ntopic='orders'\nevery='1m'\npayload='{'\n", "schedules.a.payload", "not valid JSON"),
    (ORDERS + "[schedules.a]\ntopic='orders'\nevery='1m'\npayload='NaN'\n", "schedules.a.payload", "no JSON"),
    (SERVER + "[resources.a]\ndestination='api'\npath='/a'\n", "resources.a.path", "{id} exactly once"),
    (SERVER + "[resources.a]\ndestination='api'\npath='/{id}/{id}'\n", "resources.a.path", "{id} exactly once"),
    (SERVER + "[resources.a]\ndestination='api'\nchanges={path='x'}\n", "resources.a.changes.path", "exactly one /"),
    (
        SERVER + "[resources.a]\ndestination='api'\nchanges={path='/x', ids_json='x'}\n",
        "resources.a.changes.ids_json",
        "JSON pointer",
    ),
]


@pytest.mark.parametrize(("text", "key", "reason"), OTHERS)
def test_a_value_that_makes_no_sense_is_named(refused: Refuse, text: str, key: str, reason: str) -> None:
    problems = dict(refused(text))
    assert list(problems) == [key]
    assert reason in problems[key]


def test_all_problems_of_one_load_are_said_at_once(refused: Refuse) -> None:
    text = "[limits]\nin_flight = 0\nx = 1\n[daemon]\nlog_level = 'x'\n[topics.a]\npriority = 1000\n"
    assert [key for key, _ in refused(text)] == [
        "limits.in_flight",
        "limits.x",
        "daemon.log_level",
        "topics.a.priority",
    ]


def test_a_wrong_environment_is_said_too(refused: Refuse) -> None:
    ((key, reason),) = refused("", STATE_DIRECTORY="relative")
    assert key == "daemon.state_dir"
    assert "STATE_DIRECTORY" in reason


def test_a_credential_is_never_quoted_in_a_reason(refused: Refuse) -> None:
    text = (
        '[destinations.a]\nurl = "https://u:hunter2@h/"\nproxy = "http://hunter2@p/x"\n'
        'headers = { Authorization = "Bearer hunter2\\n", B = "hunter2 {secret:x}" }\n'
        'oauth = { token_url = "https://hunter2@h", client_id = "hunter2\\n", client_secret = "hunter2\\n" }\n'
    )
    problems = refused(text)
    assert len(problems) == 7
    assert "hunter2" not in repr(problems)
