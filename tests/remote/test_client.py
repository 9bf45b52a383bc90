"""The client against a server with faults: each becomes one clear line, and a stop ends it at once."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specview.errors import SpecviewError, Stopped
from specview.remote import client as client_file
from specview.remote import stream
from specview.remote.client import Client, HttpStatus
from tests.remote.server import Call, LoopbackServer, recorded, serving

_CHUNK = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


def line_of(answer: Callable[[Call], None], act: Callable[[Client], object], **settings: object) -> str:
    """What the fault is called, in one line."""
    with serving(answer) as server, Client(server.url, retries=0, **settings) as client, pytest.raises(SpecviewError) as error:
        act(client)
    text = str(error.value)
    assert "\n" not in text and "Traceback" not in text and len(text) < 500
    return text


def read(client: Client) -> list[dict]:
    with client.stream("/v1/chat/completions", {"stream": True}) as found:
        return list(found)


def test_a_refused_connection() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}", retries=0) as client, pytest.raises(SpecviewError, match="refused"):
        client.get("/health")


def test_a_name_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with Client("http://no-such-box:80") as client, pytest.raises(SpecviewError, match="no host named no-such-box"):
        client.get("/health")


def test_a_web_page_answers() -> None:
    def page(call: Call) -> None:
        call.send("<!doctype html><html>Router login</html>", "text/html")

    assert "web page" in line_of(page, lambda client: client.get_json("/v1/models"))
    assert "web page" in line_of(page, read)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, '{"error":{"message":"Invalid API Key"}}', "SPECVIEW_API_KEY"),
        (404, '{"error":{"message":"The model `x` does not exist."}}', "The model `x` does not exist."),
        (429, '{"detail":"too many"}', "too many"),
        (500, "boom", "boom"),
        (400, recorded("llama-error-toolong.http").partition("\n\n")[2], "exceeds the available context size"),
    ],
)
def test_an_answer_that_says_no(status: int, body: str, said: str) -> None:
    assert said in line_of(lambda call: call.send(body, status=status), read)


def test_a_redirect_is_not_followed() -> None:
    def away(call: Call) -> None:
        call.send("", status=302, Location="http://198.51.100.7/")

    assert "did not name" in line_of(away, lambda client: client.get("/v1/models"))


def test_an_error_in_mid_stream_keeps_what_came() -> None:
    def answer(call: Call) -> None:
        call.begin()
        call.write(_CHUNK + b'data: {"error":{"message":"CUDA out of memory","code":500}}\n\n')

    found: list[dict] = []
    with serving(answer) as server, Client(server.url) as client, pytest.raises(SpecviewError, match="CUDA out of memory"), client.stream("/x", {}) as objects:
        for one in objects:
            found.append(one)
    assert len(found) == 1


def test_a_cut_connection() -> None:
    def answer(call: Call) -> None:
        call.begin(Content_Length="100000")
        call.write(_CHUNK)

    assert "was cut" in line_of(answer, read)


def test_a_stalled_stream() -> None:
    def answer(call: Call) -> None:
        call.begin()
        call.write(_CHUNK)
        call.stall()

    assert "silent" in line_of(answer, read, stream_read_s=0.2)


def test_what_is_not_json_and_what_is_no_stream() -> None:
    assert "not JSON" in line_of(lambda call: call.send("{nope"), lambda client: client.get_json("/props"))
    assert "in place of a stream" in line_of(lambda call: call.json({"choices": []}), read)


def test_a_line_and_an_answer_without_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LONGEST_LINE", 200_000)
    monkeypatch.setattr(client_file, "MOST_BYTES", 200_000)

    def flood(call: Call) -> None:
        call.begin("text/event-stream" if call.method == "POST" else "application/json")
        call.write(b"data: ")
        for _ in range(200):  # 200 MB, were it read
            call.write(b"x" * 1_000_000)
            if call._server.ending.is_set():
                return

    assert "more than" in line_of(flood, read)
    assert "more than" in line_of(flood, lambda client: client.get("/metrics"))


def test_a_certificate_that_nobody_signed(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"],
        capture_output=True, check=False,
    ) if _has_openssl() else None  # fmt: skip
    if made is None or made.returncode:
        pytest.skip("no openssl to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def wrapped(server: LoopbackServer) -> str:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # its own side of the broken handshake
        return server.url.replace("http:", "https:")

    with serving(lambda call: call.json({})) as server:
        url = wrapped(server)
        with Client(url, retries=0) as client, pytest.raises(SpecviewError, match="certificate"):
            client.get("/health")
    with serving(lambda call: call.json({})) as server, Client(server.url.replace("http:", "https:"), retries=0) as client, pytest.raises(SpecviewError, match="TLS"):
        client.get("/health")


def _has_openssl() -> bool:
    import shutil

    return shutil.which("openssl") is not None


# -- again, and stop ----------------------------------------------------------------------------


def test_a_busy_server_is_asked_again_and_then_said_to_be() -> None:
    busy = iter([503, 429])

    def answer(call: Call) -> None:
        status = next(busy, 200)
        call.send('{"status":"ok"}', status=status, Retry_After="0")

    with serving(answer) as server, Client(server.url, retries=2) as client:
        assert client.get_json("/health") == {"status": "ok"}
        assert len(server.calls) == 3
    with serving(lambda call: call.send("{}", status=503, Retry_After="0")) as server, Client(server.url, retries=2) as client:
        with pytest.raises(HttpStatus) as error:
            client.get("/health")
        assert error.value.status == 503 and len(server.calls) == 3


def test_a_request_that_may_have_been_worked_on_is_not_asked_again() -> None:
    for status in (500, 400):
        with serving(lambda call, status=status: call.send("{}", status=status)) as server, Client(server.url, retries=3) as client:
            with pytest.raises(HttpStatus):
                read(client)
            assert len(server.calls) == 1

    def cut(call: Call) -> None:
        call.begin(Content_Length="1000")

    with serving(cut) as server, Client(server.url, retries=3) as client:
        with pytest.raises(SpecviewError):
            read(client)
        assert len(server.calls) == 1


@pytest.mark.parametrize("begun", [True, False])
def test_a_stop_ends_a_read_at_once(begun: bool) -> None:
    reached = threading.Event()

    def answer(call: Call) -> None:
        if begun:
            call.begin()
            call.write(_CHUNK)
        reached.set()
        call.stall()

    with serving(answer) as server, Client(server.url, stream_read_s=60) as client:
        stopper = threading.Thread(target=lambda: (reached.wait(10), time.sleep(0.05), client.stop()), name="stopper")
        stopper.start()
        with pytest.raises(Stopped):
            read(client)
        assert not server.ending.is_set()
        stopper.join()
        with pytest.raises(Stopped):
            client.get("/health")


# -- keys ---------------------------------------------------------------------------------------


def test_the_key_is_sent_and_never_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    def answer(call: Call) -> None:
        call.json({"error": {"message": f"no such key: {call.headers.get('Authorization')}"}}, 404)

    monkeypatch.setenv("SPECVIEW_API_KEY", "sk-other")
    with serving(answer) as server:
        with Client(server.url.replace("//", "//sk-secret-9@"), retries=0) as client, pytest.raises(SpecviewError) as error:
            client.get("/v1/models")
        assert server.calls[0].headers["Authorization"] == "Bearer sk-secret-9"
        assert "sk-secret-9" not in str(error.value) and "(hidden)" in str(error.value)
        with Client(server.url, retries=0) as client, pytest.raises(SpecviewError):
            client.get("/v1/models")
        assert server.calls[1].headers["Authorization"] == "Bearer sk-other"
    assert "sk-" not in caplog.text and "sk-" not in repr(client.__dict__)
