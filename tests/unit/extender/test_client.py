"""The client against a real server: what goes wrong on the way, and what it costs."""

from __future__ import annotations

import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from capcard_sched_extender import wire
from capcard_sched_extender.client import MOST_BYTES, WebhookClient
from capcard_sched_extender.port import BreakerState, CallCount, CallFailure, NoWebhook, WebhookSettings
from tests.unit.extender.webhook import (
    QUESTION,
    YES,
    Drip,
    Raw,
    Webhook,
    call_webhook,
    cluster,
    conf,
    failures,
    free_port,
)

pytestmark = pytest.mark.processes

ONCE = wire.verb("allocate", wire.EventResponse, repeatable=False)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_without_a_client_every_call_fails_and_is_counted() -> None:
    port = NoWebhook()
    failure = CallFailure("url", "there is no connection to webhooks here")
    assert (port.call(QUESTION, 2, list), port.unavailable("predicate")) == ([failure, failure], failure)
    assert port.counts["predicate"] == CallCount(0, 0.0, {"url": 3})


@pytest.mark.parametrize(
    "reply, kind, message",
    [
        (Raw(b"", 500), "status", "failed predicate with extender at URL URL/predicate, code 500"),
        (Raw(b"{}", 201), "status", "code 201"),
        (Raw(b"{}", delay=5), "timeout", "no response to predicate from URL/predicate within 0.3 s"),
        (Drip(0.05), "timeout", "no response to predicate from URL/predicate within 0.3 s"),
        (Raw(b""), "answer", "it is not JSON"),
        (Raw(b"[1]"), "answer", "the body: expected a mapping, got a list"),
        (
            Raw(b'{"status": 7}'),
            "answer",
            'status: expected a string, got the number 7; accepted: {"status": string, "code": integer',
        ),
        (Raw(b'{"status": "no", "code": "2"}'), "answer", 'code: expected an integer, got the string "2"; accepted: '),
        (
            Raw(b'{"status": "no", "code": 6}'),
            "answer",
            "code: expected an integer, at most 5, got the number 6; accepted: ",
        ),
    ],
)
def test_a_failure_names_the_verb_and_the_error(
    webhook: Webhook, client_of: Callable[..., WebhookClient], reply: Any, kind: str, message: str
) -> None:
    webhook.replies = {"predicate": reply}
    client = client_of(webhook.url, timeout=0.3)
    began = time.monotonic()
    (found,) = call_webhook(client)
    assert time.monotonic() - began < 3
    assert isinstance(found, CallFailure)
    assert found.kind == kind
    assert "predicate" in found.message
    assert message.replace("URL/", f"{webhook.url}/") in found.message
    assert failures(client) == {kind: 1}


@pytest.mark.parametrize(
    "verb, body, message",
    [
        (
            "predicateBatch",
            b'{"results": {"n": {"code": 9}}}',
            "results.n.code: expected an integer, at most 5, got the number 9; accepted: ",
        ),
        ("predicateBatch", b"{}", "results: expected a map, got null; accepted: "),
        ("prioritize", b'{"nodeScore": {"n": "1"}}', 'nodeScore.n: expected a number, got the string "1"; accepted: '),
        ("prioritize", b'{"nodeScore": {"n": 1e999}}', "nodeScore: number out of range; accepted: "),
        ("preemptable", b'{"status": 2}', "status: expected an integer, at most 1, got the number 2; accepted: "),
        ("reclaimable", b'{"victims": [{"Name": "x"}]}', "victims[0].UID: is required; accepted: "),
        ("jobEnqueueable", b'{"status": "1"}', 'status: expected an integer, got the string "1"; accepted: '),
        ("jobReady", b'{"status": 1}', "status: expected true or false, got the number 1; accepted: "),
        (
            "queueOverused",
            b'{"overused": "true"}',
            'overused: expected true or false, got the string "true"; accepted: ',
        ),
        ("allocateFunc", b'{"errorMessage": []}', "errorMessage: expected a string, got a list; accepted: "),
        ("allocateFunc", b'{"errorMessage": "\xff"}', "it is not JSON: 'utf-8' codec can't decode"),
        ("jobReady", b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "it is nested too deeply; accepted: "),
    ],
)
def test_a_malformed_response_is_reported_with_verb_field_and_accepted_form(
    webhook: Webhook, client_of: Callable[..., WebhookClient], verb: str, body: bytes, message: str
) -> None:
    webhook.replies = {verb: Raw(body)}
    form = wire.FORMS[f"{verb}Verb"][1]
    assert form is not None
    check: Any = {"predicateBatch": wire.check_results, "prioritize": wire.check_scores}.get(verb)
    (found,) = call_webhook(client_of(webhook.url), question=wire.verb(verb, form, check))
    assert found.kind == "answer"
    assert found.message.startswith(f"the response to {verb} from {webhook.url}/{verb} is invalid: {message}")
    assert "accepted: {" in found.message


@pytest.mark.parametrize(
    "text, shown",
    [
        ("no", "no"),
        ("two\nlines\t and\x00more", "two lines and?more"),
        ("  ", "no reason given"),
        ("x" * 513, "x" * 509 + "..."),
        ("y" * 10_000_000, "y" * 509 + "..."),
    ],
)
def test_a_message_of_a_response_becomes_one_short_line(text: str, shown: str) -> None:
    assert wire.readable(text) == shown


@contextmanager
def talking(talk: Callable[[socket.socket], None]) -> Iterator[tuple[str, threading.Thread]]:
    """The URL of a server that handles its listening socket like this, and its thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=talk, args=(server,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", thread
        thread.join(10)


def test_a_refused_connection_and_an_unresolvable_host_are_failures(client_of: Callable[..., WebhookClient]) -> None:
    refused = f"http://127.0.0.1:{free_port()}"
    for url in (refused, "http://extender.invalid"):
        (found,) = call_webhook(client_of(url))
        assert found.kind == "connection"
        assert f"predicate failed at {url}/predicate" in found.message


def test_a_response_that_is_no_http_is_a_failure(client_of: Callable[..., WebhookClient]) -> None:
    def talk_nonsense(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"SSH-2.0-nonsense\r\n\r\n")

    with talking(talk_nonsense) as (url, _):
        (found,) = call_webhook(client_of(url))
    assert found.kind == "connection"


@pytest.mark.parametrize("extra, read", [(0, True), (1, False)])
def test_a_response_may_have_ten_mebibytes_and_no_byte_more(
    webhook: Webhook, client_of: Callable[..., WebhookClient], extra: int, read: bool
) -> None:
    body = b'{"status": ""}'
    webhook.replies = {"predicate": Raw(body + b" " * (MOST_BYTES - len(body) + extra))}
    client = client_of(webhook.url)
    (found,) = call_webhook(client)
    assert (found == YES) == read
    if not read:
        assert (found.kind, "longer than 10 MiB" in found.message) == ("size", True)
    webhook.replies = {"predicate": {}}
    assert call_webhook(client) == [YES]


def test_an_endless_response_of_unknown_length_is_aborted(client_of: Callable[..., WebhookClient]) -> None:
    def pour(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")

    with talking(pour) as (url, thread):
        (found,) = call_webhook(client_of(url, timeout=60.0))
        thread.join(10)
        assert not thread.is_alive()
    assert found.kind == "size"


def test_without_a_usable_url_nothing_is_sent(client_of: Callable[..., WebhookClient]) -> None:
    client = client_of("")

    def write() -> list[bytes]:
        raise AssertionError("it would have no reader")

    assert client.call(QUESTION, 2, write) == [CallFailure("url", "no valid URL is configured")] * 2
    assert failures(client) == {"url": 2}


@pytest.mark.parametrize("question, answered", [(QUESTION, True), (ONCE, False)])
def test_a_kept_connection_that_turns_out_closed_is_replaced_once_when_that_does_no_harm(
    client_of: Callable[..., WebhookClient], question: Any, answered: bool
) -> None:
    def answer_then_hang_up(server: socket.socket) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        first, _ = server.accept()
        with first:
            first.recv(65536)
            first.sendall(answer)
            first.recv(65536)
        second, _ = server.accept()
        with second:
            if second.recv(65536):
                second.sendall(answer)

    with talking(answer_then_hang_up) as (url, _):
        client = client_of(url)
        assert not isinstance(call_webhook(client, question=question)[0], CallFailure)
        (found,) = call_webhook(client, question=question)
        assert isinstance(found, CallFailure) != answered
        # The server waits for a second connection in either case.
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))).close()


# --- side by side -----------------------------------------------------------------------------------------------------


def test_calls_go_side_by_side_on_connections_that_are_kept(
    webhook: Webhook, client_of: Callable[..., WebhookClient]
) -> None:
    webhook.replies = {"predicate": Raw(b"{}", delay=0.05)}
    client = client_of(webhook.url, connections=4)
    assert call_webhook(client, 12) == [YES] * 12
    assert webhook.most_under_way == 4
    assert call_webhook(client, 4) == [YES] * 4
    assert len(webhook.connections) == 4
    assert client.counts["predicate"].calls == 16
    assert client.counts["predicate"].seconds >= 16 * 0.05


def test_responses_keep_the_order_of_the_requests(webhook: Webhook, client_of: Callable[..., WebhookClient]) -> None:
    webhook.replies = {"predicate": lambda received: Raw(b'{"status": "%d"}' % received, delay=0.02 * (3 - received))}
    found = client_of(webhook.url).call(QUESTION, 4, lambda: [b"0", b"1", b"2", b"3"])
    assert [answer.status for answer in found if isinstance(answer, wire.PredicateResponse)] == ["0", "1", "2", "3"]


def test_one_failure_is_no_failure_of_its_neighbours(webhook: Webhook, client_of: Callable[..., WebhookClient]) -> None:
    webhook.replies = {"predicate": lambda received: Raw(b"{}", 200 if received % 2 else 500)}
    found = client_of(webhook.url).call(QUESTION, 4, lambda: [b"0", b"1", b"2", b"3"])
    assert [isinstance(answer, CallFailure) for answer in found] == [True, False, True, False]


def test_the_budget_of_a_session_ends_all_waiting(webhook: Webhook, client_of: Callable[..., WebhookClient]) -> None:
    webhook.replies = {"predicate": Raw(b"{}", delay=0.2)}
    client = client_of(webhook.url, budget=0.5, connections=1, failures=2)
    client.begin()
    began = time.monotonic()
    found = call_webhook(client, 10)
    assert time.monotonic() - began < 2
    assert found[0] == YES
    assert {answer.kind for answer in found[3:]} == {"budget"}
    assert "the session's budget of 0.5 s is used up" in found[-1].message
    assert call_webhook(client)[0].kind == "budget"
    assert client.breaker_state is BreakerState.CLOSED  # the webhook did nothing wrong
    client.begin()
    assert call_webhook(client) == [YES]


# --- the thread -------------------------------------------------------------------------------------------------------


def threads() -> int:
    return sum(1 for thread in threading.enumerate() if thread.name == "extender")


def test_the_thread_begins_with_the_first_call_and_ends_with_the_client(webhook: Webhook) -> None:
    gc.collect()
    before = threads()
    client = WebhookClient(WebhookSettings(webhook.url, 5, 60, 2, breaker_failures=0, breaker_period=1))
    assert threads() == before
    assert call_webhook(client) == [YES]
    assert threads() == before + 1
    client.close()
    client.close()
    assert threads() == before
    assert call_webhook(client) == [YES]
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    assert threads() == before


def test_a_plugin_that_a_new_scheduler_conf_replaces_takes_its_thread_along(webhook: Webhook) -> None:
    webhook.replies = {"ready": {"status": True}}
    gc.collect()
    before = threads()
    h = cluster(conf(webhook.url, "ready"))
    h.step()
    assert threads() == before + 1
    h.reconfigure('actions: "allocate"\ntiers: [{plugins: [{name: gang}]}]\n')
    h.step()
    gc.collect()
    assert threads() == before
