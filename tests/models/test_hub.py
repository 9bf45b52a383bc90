"""Hugging Face ids: from the cache without network, or downloaded from a small server of this test's own."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from specview.errors import SpecviewError, Stopped
from specview.models import hub

Make = Callable[..., Path]
COMMIT = "c" * 40


class _Hub(ThreadingHTTPServer):
    """Answers as huggingface.co does for one repository of plain files."""


    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.requests: list[tuple[str, str, str]] = []
        self.sent = 0


class _Handler(BaseHTTPRequestHandler):
    server: _Hub
    protocol_version = "HTTP/1.0"  # one request a connection: no thread outlives a test

    def log_message(self, *_: Any) -> None:
        pass

    def _json(self, value: Any, status: int = 200, **headers: str) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for key, text in headers.items():
            self.send_header(key.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requests.append((self.command, self.path, self.headers.get("Range", "")))
        path = self.path.split("?")[0]
        if path.startswith("/api/models/owner/name"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in self.server.files.items()]
            self._json({"id": "owner/name", "modelId": "owner/name", "sha": COMMIT, "siblings": siblings, "tags": []})
            return
        name = path.rpartition(f"/resolve/{COMMIT}/")[2] if COMMIT in path else path.rpartition("/resolve/main/")[2]
        data = self.server.files.get(name)
        if not path.startswith("/owner/name/") or data is None:
            self._json({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            return
        start = 0
        if self.headers.get("Range"):
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[start:])
            self.server.sent += len(data) - start


@pytest.fixture
def served(make_folder: Make, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Hub]:
    """The server, and huggingface_hub pointed at it and at an empty cache."""
    pytest.importorskip("huggingface_hub")
    import huggingface_hub.file_download as file_download
    import huggingface_hub.hf_api as hf_api
    from huggingface_hub import constants

    folder = make_folder("served")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"pytorch_model.bin": b"pickle", "modeling.py": b"code", "onnx/model.onnx": b"x", "README.md": b"hi"}
    server = _Hub(files)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub.hub_cache()))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)
    api = hf_api.HfApi(endpoint=endpoint, token=False)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    real = file_download.hf_hub_download
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download",
        lambda *a, **k: real(*a, endpoint=endpoint, cache_dir=str(hub.hub_cache()), token=False, **k),
    )
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_only_what_a_model_needs_is_fetched_and_only_once(served: _Hub) -> None:
    seen: list[tuple[str, float | None]] = []
    folder = hub.fetch("owner/name", progress=lambda text, fraction: seen.append((text, fraction)))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    for path in folder.iterdir():
        assert path.read_bytes() == served.files[path.name]
    assert seen[-1][1] == pytest.approx(1.0)
    served.requests.clear()
    assert hub.fetch("owner/name") == folder
    assert not served.requests, "a cached model asks no network"
    assert hub.cached_ids() == ["owner/name"]


def test_stop_and_go_on(served: _Hub) -> None:
    served.files["model.safetensors"] = _large_safetensors(4 << 20)
    stop = threading.Event()

    def progress(_: str, fraction: float | None) -> None:
        if fraction is not None and fraction > 0.4:
            stop.set()

    with pytest.raises(Stopped):
        hub.fetch("owner/name", progress=progress, should_stop=stop.is_set)
    assert hub.cached_folder("owner/name") is None
    assert not list(hub.hub_cache().rglob("*.incomplete"))
    served.requests.clear()
    folder = hub.fetch("owner/name")
    assert (folder / "model.safetensors").read_bytes() == served.files["model.safetensors"]
    fetched = [path.rpartition("/")[2] for method, path, _ in served.requests if method == "GET" and "resolve" in path]
    assert fetched == ["model.safetensors"], "whole files are not fetched twice"


def _large_safetensors(size: int) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(range(256)) * (size // 256)


def test_what_the_hub_does_not_have(served: _Hub) -> None:
    with pytest.raises(SpecviewError, match="has no model owner/other"):
        hub.fetch("owner/other")
    served.files = {"model-Q4.gguf": b"GGUF", "config.json": b"{}"}
    with pytest.raises(SpecviewError, match=r"no safetensors weights. For llama.cpp name one file: owner/name/model-Q4"):
        hub.fetch("owner/name")
    with pytest.raises(SpecviewError, match="has no file other.gguf"):
        hub.fetch_gguf("owner/name", "other.gguf")
    assert hub.fetch_gguf("owner/name", "model-Q4.gguf").read_bytes() == b"GGUF"
    assert hub.cached_gguf_files("owner/name") == ["model-Q4.gguf"]


def test_full_disk(served: _Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)
    with pytest.raises(SpecviewError, match="the disk is full"):
        hub.fetch("owner/name")


def test_offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")

    class Offline:
        def model_info(self, *_: Any, **__: Any) -> Any:
            raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "HfApi", Offline)
    with pytest.raises(SpecviewError, match=r"owner/name is not in the local cache .* cannot be reached") as caught:
        hub.fetch("owner/name")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_id"),
    [
        ("owner/name", True), ("HuggingFaceTB/SmolLM2-135M-Instruct", True), ("a/b.c", True), ("name", False),
        ("/abs/path", False), ("a/b/c", False), ("../up", False), ("a/../b", False), ("./a", False), ("~/a", False),
        ("a/b.gguf", False), ("a b/c", False), ("-a/b", False), ("a/b\n", False),
    ],
)  # fmt: skip
def test_ids(text: str, is_id: bool) -> None:
    assert hub.is_repo_id(text) is is_id
