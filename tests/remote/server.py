"""A server on this machine that answers as a test says, faults included. Its threads end with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WIRE = Path(__file__).parent / "wire"


class Call:
    """One request, and the means to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, server: LoopbackServer) -> None:
        self.path, self.method, self.headers = handler.path, handler.command, dict(handler.headers.items())
        length = int(handler.headers.get("Content-Length") or 0)
        self.body = json.loads(handler.rfile.read(length) or b"null") if length else None
        self._handler, self._server = handler, server

    def send(self, body: bytes | str, kind: str = "application/json", status: int = 200, **headers: str) -> None:
        """Answer whole."""
        data = body.encode() if isinstance(body, str) else body
        self.begin(kind, status, **{"Content-Length": str(len(data)), **headers})
        self.write(data)

    def json(self, value: object, status: int = 200) -> None:
        """Answer with JSON."""
        self.send(json.dumps(value), status=status)

    def begin(self, kind: str = "text/event-stream", status: int = 200, **headers: str) -> None:
        """Begin an answer whose end is the connection's."""
        self._handler.send_response(status)
        self._handler.send_header("Content-Type", kind)
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()

    def write(self, data: bytes) -> None:
        """Send bytes of the body; a client that left is no fault."""
        try:
            self._handler.wfile.write(data)
            self._handler.wfile.flush()
        except OSError:
            pass

    def stall(self) -> None:
        """Say nothing until the server ends."""
        self._server.ending.wait(30)


class LoopbackServer(ThreadingHTTPServer):
    """Answers every request by `answer`, and keeps what it was asked."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, answer: Callable[[Call], None]) -> None:
        self.calls: list[Call] = []
        self.ending = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                call = Call(self, server)
                server.calls.append(call)
                answer(call)

            do_GET = do_POST = handle_any  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None:
                pass

        server = self
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, path: str) -> list[Call]:
        return [call for call in self.calls if call.path == path]


@contextmanager
def serving(answer: Callable[[Call], None]) -> Iterator[LoopbackServer]:
    """A server while the block runs."""
    server = LoopbackServer(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="loopback server")
    thread.start()
    try:
        yield server
    finally:
        server.ending.set()
        server.shutdown()
        server.server_close()
        thread.join()


def recorded(name: str) -> str:
    return (WIRE / name).read_text(encoding="utf-8")


def objects(name: str) -> list[dict]:
    """The chunks of a recorded stream."""
    lines = (line[6:] for line in recorded(name).splitlines() if line.startswith("data: {"))
    return [json.loads(line) for line in lines]


def llama(kind: str) -> Callable[[Call], None]:
    """llama-server as it was recorded: plain, draft-simple or ngram-simple."""

    def answer(call: Call) -> None:
        files = {"/v1/models": "models.json", "/props": "props.json", "/slots": "slots.json"}
        if call.path in files:
            call.send(recorded(f"llama-{kind}.{files[call.path]}"))
        elif call.path == "/metrics":
            call.send(recorded(f"llama-{kind}.metrics.txt"), "text/plain")
        elif call.path == "/apply-template":
            call.json({"prompt": "<|im_start|>user\n" + call.body["messages"][-1]["content"] + "<|im_end|>\n"})
        elif call.path == "/tokenize":
            text = call.body["content"]
            call.json({"tokens": [2] if text == "<|im_end|>" else list(range(5, 5 + len(text.split())))})
        elif call.path == "/completion":
            call.begin()
            call.write(recorded(f"llama-{kind}.completion.sse").encode())
        else:
            call.json({"error": {"message": "File Not Found"}}, 404)

    return answer


def vllm(call: Call) -> None:
    """vLLM as it was recorded, its counters moving on with the answer."""
    state = call._server.__dict__.setdefault("state", {"asked": False})
    if call.path == "/v1/models":
        call.json({"object": "list", "data": [{"id": "smol", "owned_by": "vllm", "max_model_len": 1024}]})
    elif call.path == "/version":
        call.send(recorded("vllm-version.json"))
    elif call.path == "/metrics":
        call.send(recorded("vllm-metrics-after.txt" if state["asked"] else "vllm-metrics-before.txt"), "text/plain; version=0.0.4")
    elif call.path == "/v1/chat/completions":
        state["asked"] = True
        call.begin()
        call.write(recorded("vllm-stream.sse").encode())
    else:
        call.json({"detail": "Not Found"}, 404)
