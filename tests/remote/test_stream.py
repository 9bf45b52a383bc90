"""The reader of server-sent events: whatever way the bytes are cut, the objects are the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specview.errors import SpecviewError
from specview.remote import stream
from specview.remote.stream import Events, payloads

_TEXTS = ["Grüße", "日本", "🙂", "\u2028", "a\\nb", ""]
_STREAM = b": keep-alive\r\n\r\n" + b"".join(
    b"event: message\nid: 4\ndata: " + json.dumps({"t": text}, ensure_ascii=False).encode() + end * 2
    for text, end in zip(_TEXTS, [b"\n", b"\r\n", b"\r", b"\n", b"\r\n", b"\n"], strict=True)
)


@given(st.lists(st.integers(0, len(_STREAM)), max_size=12))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    places = sorted({0, len(_STREAM), *cuts})
    chunks = [_STREAM[begin:end] for begin, end in zip(places, places[1:], strict=False)]
    assert [one["t"] for one in payloads(chunks)] == _TEXTS


def test_several_data_lines_are_one_object() -> None:
    assert list(payloads([b'data: {"a":\ndata:  1}\n\n'])) == [{"a": 1}]


def test_done_ends_it_and_so_does_the_end_without_one() -> None:
    assert list(payloads([b'data: {"a":1}\n\ndata: [DONE]\n\ndata: {"a":2}\n\n'])) == [{"a": 1}]
    assert list(payloads([b'data: {"a":1}\n\ndata: {"a":2}'])) == [{"a": 1}, {"a": 2}]
    assert list(payloads([b": nothing\n\n"])) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"data: {not json}\n\n", "not json"),
        (b"data: 5\n\n", "5"),
        (b'data: {"error":{"message":"out of\\nmemory","code":500}}\n\n', "out of memory"),
        (b'event: error\ndata: {"detail":"gone"}\n\n', "gone"),
        (b'error: {"code":500,"message":"old form"}\n\n', "old form"),
        (b'data: {"object":"error","message":"vllm says"}\n\n', "vllm says"),
    ],
)
def test_what_is_wrong_in_it_is_one_line(text: bytes, said: str) -> None:
    found = []
    with pytest.raises(SpecviewError) as error:
        for one in payloads([b'data: {"a":1}\n\n', text]):
            found.append(one)
    assert found == [{"a": 1}]  # what came before is kept
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LONGEST_LINE", 1000)
    events = Events()
    with pytest.raises(stream.LineTooLong):
        for _ in range(200):
            events.feed(b"x" * 10)
    event = Events()
    with pytest.raises(stream.LineTooLong):  # and so is an event without one
        for _ in range(200):
            event.feed(b"data: " + b"x" * 10 + b"\n")
