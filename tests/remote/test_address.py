"""Addresses and keys: what is secret is taken out, used, and shown nowhere."""

from __future__ import annotations

import sys
import types

import pytest

from specview.errors import UsageError
from specview.remote import keys
from specview.remote.address import Address, Secret, is_address, parse


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    keys.forget()
    monkeypatch.delenv(keys.VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "keyring", None)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://localhost", "http://localhost:80"),
        ("HTTPS://Box.example.org/", "https://box.example.org:443"),
        ("http://box:8000/v1", "http://box:8000"),
        ("http://box:8000/v1/chat/completions", "http://box:8000"),
        ("http://box/serve/llm/v1/", "http://box:80/serve/llm"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_address_is_told_in_one_form(text: str, url: str) -> None:
    assert is_address(text)
    assert parse(text).url == url == parse(url).url


@pytest.mark.parametrize(
    "text", ["http://", "http://:8080", "http://box:notaport", "http://box:99999", "ftp://box", "http://bo x", "http://box?model=x", "http://box\n:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("http://sk-123@box:1", Secret("sk-123")),
        ("http://:sk-123@box:1", Secret("sk-123")),
        ("http://anna:sk-123@box:1", Secret("anna:sk-123", "basic")),
        ("http://box:1?api_key=sk-123", Secret("sk-123")),
        ("http://box:1/v1?key=sk-123#sk-123", Secret("sk-123")),
    ],
)
def test_a_secret_is_taken_out_of_the_address(text: str, secret: Secret) -> None:
    address = parse(text)
    assert address.secret == secret
    assert "sk-123" not in f"{address} {address!r} {address.url} {address.secret} {address.secret!r}"


def test_a_wrong_address_with_a_secret_does_not_show_it() -> None:
    for text in ("http://sk-123@box:notaport", "http://sk-123@:80", "ftp://sk-123@box", "http://box?other=sk-123"):
        with pytest.raises(UsageError) as error:
            parse(text)
        assert "sk-123" not in str(error.value)


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("127.0.0.1", False), ("10.1.2.3", False), ("192.168.0.7", False), ("[::1]", False), ("[fd00::1]", False), ("localhost", False),
        ("gpu-box", False), ("gpu.local", False), ("gpu.lan", False), ("8.8.8.8", True), ("api.example.com", True), ("[2001:4860:4860::8888]", True),
    ],
)  # fmt: skip
def test_a_public_address_is_told_apart(host: str, public: bool) -> None:
    assert parse(f"http://{host}:80").public is public


def test_the_key_as_typed_is_remembered_for_the_address_without_it() -> None:
    url = keys.take("http://sk-123@127.0.0.1:8080/v1")
    assert url == "http://127.0.0.1:8080"
    assert keys.key_for(parse(url)) == Secret("sk-123")
    keys.forget()
    assert keys.key_for(parse(url)) is None


def test_a_servers_own_variable_comes_before_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    box = parse("http://gpu-box.lan:8000")
    assert keys.variable(box) == "SPECVIEW_API_KEY_GPU_BOX_LAN_8000"
    monkeypatch.setenv(keys.VARIABLE, "one")
    assert keys.key_for(box) == Secret("one")
    monkeypatch.setenv(keys.variable(box), "own")
    assert keys.key_for(box) == Secret("own")
    assert keys.key_for(parse("http://gpu-box.lan:8001")) == Secret("one")


def test_the_keyring_is_asked_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ring = types.SimpleNamespace(get_password=lambda *names: asked.append(names) or "ringed")
    monkeypatch.setitem(sys.modules, "keyring", ring)
    assert keys.key_for(Address("http", "box", 80)) == Secret("ringed")
    assert asked == [("specview", "box:80")]


def test_no_key_goes_over_the_internet_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(keys.VARIABLE, "sk-123")
    with pytest.raises(UsageError) as error:
        keys.key_for(parse("http://api.example.com"))
    assert "sk-123" not in str(error.value)
    assert keys.key_for(parse("https://api.example.com")) == Secret("sk-123")


def test_a_key_that_a_server_repeats_is_hidden() -> None:
    assert keys.hidden("bad key sk-123", Secret("sk-123")) == "bad key (hidden)"
    assert "sk-123" not in keys.hidden("bad password sk-123 of anna:sk-123", Secret("anna:sk-123", "basic"))
