"""The metrics, rules and board in a real Prometheus that scrapes a real daemon to which everything has happened."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from lab_processes import until
from promtool import BOARD, RULES, fetch, promtool
from scraped import Scraped, scraped

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus: make lab-packages"),
]

LABELS = {
    "kurir_jobs": ("gauge", {"topic", "state"}),
    "kurir_oldest_pending_age_seconds": ("gauge", {"topic"}),
    "kurir_accepted_total": ("counter", {"topic"}),
    "kurir_refused_total": ("counter", {"code"}),
    "kurir_attempts_total": ("counter", {"topic", "destination", "verdict"}),
    "kurir_retries_total": ("counter", {"topic", "destination", "reason"}),
    "kurir_finished_total": ("counter", {"topic", "state"}),
    "kurir_job_attempts": ("histogram", {"topic"}),
    "kurir_attempt_seconds": ("histogram", {"destination"}),
    "kurir_sync_seconds": ("histogram", {"topic"}),
    "kurir_leases_lost_total": ("counter", set()),
    "kurir_duplicates_total": ("counter", {"where"}),
    "kurir_breaker_state": ("gauge", {"destination"}),
    "kurir_held": ("gauge", {"destination", "reason"}),
    "kurir_network_state": ("gauge", set()),
    "kurir_network_metered": ("gauge", set()),
    "kurir_on_battery": ("gauge", set()),
    "kurir_clock_synced": ("gauge", set()),
    "kurir_wakeups_total": ("counter", {"cause"}),
    "kurir_sent_bytes_total": ("counter", set()),
    "kurir_radio_bursts_total": ("counter", set()),
    "kurir_conflicts_total": ("counter", {"kind"}),
    "kurir_store_bytes": ("gauge", {"file"}),
    "kurir_disk_free_bytes": ("gauge", set()),
    "kurir_degraded": ("gauge", {"reason"}),
    "kurir_ledger": ("gauge", {"topic", "kind"}),
    "kurir_dropped_total": ("counter", {"topic", "reason"}),
}
UNKNOWN_HERE = {"kurir_network_metered", "kurir_on_battery"}
"""Without NetworkManager and a battery nobody knows, and nothing is said."""

OF_OTHERS = {"up", "node_textfile_mtime_seconds"}
TOPICS = {"orders", "refused", "busy", "dark", "locked", "later", "edit", "thumbs", "adhoc", "other"}
DESTINATIONS = {"api", "dark", "locked", "later", "adhoc", "local"}
BOOKS = (
    'sum by (topic) (kurir_ledger{kind=~"accepted|imported"})',
    'sum by (topic) (kurir_ledger{kind!~"accepted|imported"})',
)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scraped]:
    with tempfile.TemporaryDirectory(prefix="k") as folder, scraped(Path(folder)) as scene:
        scene.daemon.write("[daemon]\nnonsense = 1\n")
        scene.daemon.hup()  # a failed reload is a degraded reason
        scene.prometheus.scraped()
        yield scene


def names_in(expression: str) -> set[str]:
    """The metrics that an expression asks for."""
    bare = re.sub(r'"[^"]*"', "", expression)
    found = set(re.findall(r"\b(?:kurir|process|python|node)_\w+|\bup\b", bare))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def known(scene: Scraped) -> set[str]:
    return {*LABELS, *OF_OTHERS, *(name for name in scene.prometheus.api("label/__name__/values") if "_" in name)}


def test_promtool_has_nothing_to_say_about_the_metrics(scene: Scraped) -> None:
    status, text = fetch(scene.url)
    assert status == 200
    assert promtool("check", "metrics", stdin=text.encode()) == (0, "")


def test_every_metric_has_its_type_and_exactly_its_labels(scene: Scraped) -> None:
    declared = dict(re.findall(r"^# TYPE (kurir_\w+) (\w+)$", fetch(scene.url)[1], re.MULTILINE))
    assert declared == {name: kind for name, (kind, _) in LABELS.items()}
    seen: dict[str, set[str]] = {}
    for sample in scene.prometheus.query('{__name__=~"kurir_.*"}'):
        metric = sample["metric"]
        name = metric["__name__"]
        if name not in LABELS:
            name = re.sub(r"_(bucket|sum|count)$", "", name)
            assert LABELS[name][0] == "histogram"
        labels = set(metric) - {"__name__", "job", "instance", "le"}
        assert seen.setdefault(name, labels) == labels
    assert seen == {name: labels for name, (_, labels) in LABELS.items() if name not in UNKNOWN_HERE}
    process = {
        sample["metric"]["__name__"] for sample in scene.prometheus.query('{__name__=~"process_.*|python_info"}')
    }
    assert {"process_start_time_seconds", "process_resident_memory_bytes", "python_info"} <= process


def test_o4_names_of_clients_fold_and_no_label_has_anything_of_theirs(scene: Scraped) -> None:
    samples = scene.prometheus.query('{__name__=~"kurir_.*"}')
    values: dict[str, set[str]] = {}
    for sample in samples:
        for label, value in sample["metric"].items():
            values.setdefault(label, set()).add(value)
    assert values["topic"] <= TOPICS
    assert values["destination"] <= DESTINATIONS
    words = set().union(*(found for label, found in values.items() if label not in ("instance", "le", "__name__")))
    assert all(re.fullmatch(r"[a-z][a-z0-9_]{0,39}", word) for word in words), words
    assert len(samples) < 1_000
    [adhoc] = scene.prometheus.query('kurir_finished_total{topic="adhoc", state="done"}')
    assert adhoc["value"][1] == "2"


def test_what_happened_is_what_the_numbers_say(scene: Scraped) -> None:
    def value(expression: str) -> float | None:
        found = scene.prometheus.query(expression)
        return float(found[0]["value"][1]) if found else None

    assert value('kurir_duplicates_total{where="submit"}') == 1
    assert value('kurir_retries_total{topic="busy", destination="api", reason="http_status"}') == 1
    assert value('kurir_conflicts_total{kind="precondition_failed"}') == 1
    assert value('kurir_dropped_total{topic="refused", reason="discarded"}') == 1
    assert value('kurir_jobs{topic="refused", state="dead"}') == 2
    assert value('kurir_held{destination="locked", reason="unauthorized"}') == 1
    assert value('kurir_held{destination="later", reason="retry_after"}') == 1
    assert value('kurir_breaker_state{destination="dark"}') == 1
    assert value('kurir_breaker_state{destination="api"}') == 0
    assert value('kurir_degraded{reason="reload"}') == 1
    assert value('kurir_attempts_total{topic="dark", destination="dark", verdict="unreachable"}') == 2
    assert value('kurir_finished_total{topic="orders", state="cancelled"}') == 1
    assert (value("kurir_sent_bytes_total") or 0) > 100_000
    assert (value('kurir_oldest_pending_age_seconds{topic="dark"}') or 0) > 0


def test_the_rules_are_loaded_each_can_be_evaluated_and_they_see_what_happened(scene: Scraped) -> None:
    scene.prometheus.scraped()
    groups = scene.prometheus.api("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    names = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert sorted(rule["name"] for rule in rules) == sorted(names)
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    for rule in rules:
        assert names_in(rule["query"]) <= known(scene), rule["name"]

    def alerts() -> set[str]:
        return {sample["metric"]["alertname"] for sample in scene.prometheus.query("ALERTS")}

    wanted = {"KurirdDestinationHeld", "KurirdDestinationSilent", "KurirdDegraded", "KurirdNeedsAPerson"}
    until(lambda: wanted <= alerts(), what=f"{wanted} are pending")
    assert not alerts() & {"KurirdDown", "KurirdBooksDoNotBalance", "KurirdStoreFailing"}


def test_a_request_for_somebody_elses_name_gets_421_and_prometheus_is_none(scene: Scraped) -> None:
    for host in ("evil.example", "evil.example:9756", "localhost.evil.example", "127.0.0.1.evil.example"):
        assert fetch(scene.url, host=host)[0] == 421
    for host in ("localhost", scene.listen, "[::1]:9756"):
        assert fetch(scene.url, host=host)[0] == 200
    assert scene.prometheus.scraped()["lastError"] == ""


# The board


def board() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(BOARD.read_text())
    return document


def panels() -> list[dict[str, Any]]:
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def test_the_board_is_one_that_grafana_takes() -> None:
    schema = json.loads(Path(__file__).with_name("dashboard.schema.json").read_text())
    validator = jsonschema_rs.validator_for(schema)
    assert [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(board())] == []
    for broken in ({"panels": [{"type": "graph"}]}, {"schemaVersion": "new"}, {"title": ""}):
        assert not validator.is_valid({**board(), **broken})


def test_no_two_panels_of_the_board_have_an_id_or_a_place_in_common() -> None:
    every = board()["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: dict[tuple[int, int], str] = {}
    for panel in every:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_each_query_of_the_board_answers_in_prometheus(scene: Scraped) -> None:
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    expressions += [note["expr"] for note in board()["annotations"]["list"]]
    assert len(expressions) > 30
    silent = []
    for expression in expressions:
        assert names_in(expression) <= known(scene), expression
        asked = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
        assert "$" not in asked
        if not scene.prometheus.query(asked):
            silent.append(names_in(expression))
    # Nobody knows here whether it is metered; and nothing was started anew.
    assert silent == [{"kurir_network_metered"}, {"kurir_on_battery"}, {"process_start_time_seconds"}]
    [variable] = [one for one in board()["templating"]["list"] if one["type"] == "query"]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
    assert found is not None
    values = scene.prometheus.api(f"label/{found[2]}/values", **{"match[]": found[1]})
    assert values == [scene.listen]


def test_everything_that_the_daemon_tells_is_on_the_board(scene: Scraped) -> None:
    shown = set().union(*(names_in(target["expr"]) for panel in panels() for target in panel["targets"]))
    assert set(LABELS) - shown == set()


# Last: it restarts the daemon.


def test_o3_the_books_balance_in_every_scrape_across_kills(scene: Scraped) -> None:
    scene.daemon.configure({})  # the configuration that can be used
    client, began = scene.daemon.client, time.time()
    entered, left = BOOKS
    orders = f'{entered} and on (topic) kurir_ledger{{topic="orders"}}'
    before = float(scene.prometheus.query(orders)[0]["value"][1])
    jobs = []
    for _ in range(3):
        jobs += [client.submit("orders", number) for number in range(25)]
        scene.daemon.kill9()
        scene.daemon.start()
        scene.prometheus.scraped()
    assert all(client.wait(job.id, 20).delivered for job in jobs)
    scene.prometheus.scraped()
    assert float(scene.prometheus.query(orders)[0]["value"][1]) == before + len(jobs)
    span = {"start": str(began), "end": str(time.time()), "step": "1"}
    assert scene.prometheus.api("query_range", query=f"{entered} != {left}", **span)["result"] == []
    [totals] = scene.prometheus.api("query_range", query=orders, **span)["result"]
    values = [float(value) for _, value in totals["values"]]
    assert values == sorted(values), "a persisted total went back"
    assert len(set(values)) > 2
    [starts] = scene.prometheus.query("changes(process_start_time_seconds[5m])")
    assert float(starts["value"][1]) >= 1
