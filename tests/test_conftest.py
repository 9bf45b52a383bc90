"""The guards of the test suite themselves."""

from __future__ import annotations

import socket

import pytest


def test_no_test_reaches_the_network() -> None:
    with pytest.raises(RuntimeError, match="never use the network"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)  # a documentation address


def test_this_machine_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=1).close()


def test_the_tiny_llama_loads_and_its_tokenizer_keeps_bytes(tiny_llama) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    assert tokenizer.decode(tokenizer.encode("maçã 🦊\n", add_special_tokens=False)) == "maçã 🦊\n"
    assert AutoModelForCausalLM.from_pretrained(tiny_llama).config.vocab_size == len(tokenizer) == 260
