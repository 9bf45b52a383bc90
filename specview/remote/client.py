"""A synchronous client for one serving engine. Every fault is one line; `stop`, from any thread, ends a read at once.

Redirects are not followed and no proxy is asked: nothing goes to a host that the user did not name. TLS is verified.
"""

from __future__ import annotations

import json
import logging
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import httpx2

from specview.errors import SpecviewError, Stopped
from specview.remote.address import Address, Secret, parse
from specview.remote.keys import hidden, key_for, variable
from specview.remote.stream import error_words, payloads, short

log = logging.getLogger(__name__)
logging.getLogger("httpx2").setLevel(logging.WARNING)  # its lines for each request are no news

CONNECT_S = 5.0
READ_S = 20.0
STREAM_READ_S = 120.0
"""Seconds without a byte after which a stream counts as stalled: a long prompt on a slow machine comes first."""
MOST_BYTES = 32_000_000
"""Bytes of an answer that is no stream."""
_AGAIN = frozenset({429, 502, 503, 504})
_LONGEST_WAIT_S = 5.0
_DNS = ("name or service not known", "nodename nor servname", "getaddrinfo", "no address associated", "name resolution")


class HttpStatus(SpecviewError):
    """An answer with a status that says no; status is its number."""

    def __init__(self, cause: str, mend: str, status: int) -> None:
        super().__init__(cause, mend)
        self.status = status


class Client:
    """Requests to one server. Use it on one thread; `stop` and `close` may come from another."""

    def __init__(
        self,
        address: Address | str,
        *,
        connect_s: float = CONNECT_S,
        read_s: float = READ_S,
        stream_read_s: float = STREAM_READ_S,
        retries: int = 2,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        self.address = parse(address) if isinstance(address, str) else address
        self._secret = key_for(self.address)
        self._timeout = httpx2.Timeout(read_s, connect=connect_s)
        self._stream_timeout = httpx2.Timeout(stream_read_s, connect=connect_s)
        self._retries = retries
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._http = httpx2.Client(
            headers={"Accept-Encoding": "identity", "User-Agent": "specview", **_authorization(self._secret)},
            limits=httpx2.Limits(max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=False,
            verify=True if verify is None else verify,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End whatever read is under way, at once; it raises Stopped, and so does every later request."""
        self._stopped.set()
        with self._lock:
            for one in self._sockets:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it was closed already

    def close(self) -> None:
        """Close what is open."""
        self.stop()
        self._http.close()

    def get(self, path: str) -> str:
        """The text of an answer. Raises SpecviewError, HttpStatus among them, or Stopped."""
        return self._whole("GET", path, None)[0]

    def get_json(self, path: str) -> Any:
        """The JSON of an answer."""
        return self._json(*self._whole("GET", path, None), path)

    def post_json(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON of an answer to a small request that changes nothing on the server (render a chat, tokenize)."""
        return self._json(*self._whole("POST", path, body), path)

    @contextmanager
    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
        """The JSON objects of a streamed answer, as they come.

        Asked again only where the server took no work on: it could not be reached, or said that it is busy.
        """
        with self._faults(path), self._opened("POST", path, body, self._stream_timeout) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "text/event-stream":
                raise self._wrong_kind(kind, self._read(response), "a stream of events")
            yield self._told(payloads(response.iter_bytes()))

    # -- requests ------------------------------------------------------------------------------

    def _told(self, found: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The objects, to a stop."""
        for one in found:
            self._stop_here()
            yield one
        self._stop_here()

    def _whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[str, str]:
        with self._faults(path), self._opened(method, path, body, self._timeout) as response:
            return self._read(response), response.headers.get("content-type", "").partition(";")[0].strip().lower()

    def _json(self, text: str, kind: str, path: str) -> Any:
        if "html" in kind:
            raise self._wrong_kind(kind, text, "JSON")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise SpecviewError(f"{self.address} answered {path} with something that is not JSON: {self._shown(text)!r}.") from None

    @contextmanager
    def _opened(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: httpx2.Timeout
    ) -> Iterator[httpx2.Response]:
        """Send and look at the status, again with a growing pause where that is safe; the body is not read yet."""
        attempt = 0
        while True:
            self._stop_here()
            last = attempt >= self._retries
            mine: set[socket.socket] = set()
            try:
                request = self._http.build_request(
                    method, self.address.url + path, json=body, timeout=timeout, extensions={"trace": self._trace(mine)}
                )
                response = self._http.send(request, stream=True)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if last or not _may_pass(error):
                    raise
                self._pause(attempt, None)
                attempt += 1
                continue
            try:
                if response.status_code in _AGAIN and not last:
                    wait = response.headers.get("retry-after")
                    response.close()
                    self._pause(attempt, wait)
                    attempt += 1
                    continue
                if response.status_code != 200:
                    raise self._refusal(response, path)
                yield response
                return
            finally:
                response.close()
                with self._lock:
                    self._sockets -= mine

    def _read(self, response: httpx2.Response) -> str:
        parts, size = [], 0
        for chunk in response.iter_bytes():
            self._stop_here()
            size += len(chunk)
            if size > MOST_BYTES:
                raise SpecviewError(f"an answer of {self.address} has more than {MOST_BYTES:,} bytes: this is no serving engine's.")
            parts.append(chunk)
        return b"".join(parts).decode("utf-8", "replace")

    def _pause(self, attempt: int, wait: str | None) -> None:
        seconds = 0.2 * 2**attempt * random.uniform(0.75, 1.25)
        if wait is not None and wait.strip().isdigit():
            seconds = min(float(wait), _LONGEST_WAIT_S)
        if self._stopped.wait(seconds):
            raise Stopped

    def _trace(self, mine: set[socket.socket]) -> Callable[[str, Mapping[str, Any]], None]:
        """Hear of the connection's socket, so that `stop` can end a read of it."""

        def hear(event: str, info: Mapping[str, Any]) -> None:
            if event != "connection.connect_tcp.complete":
                return
            found = info["return_value"].get_extra_info("socket")
            if isinstance(found, socket.socket):
                mine.add(found)
                with self._lock:
                    self._sockets.add(found)

        return hear

    def _stop_here(self) -> None:
        if self.stopped:
            raise Stopped

    # -- faults --------------------------------------------------------------------------------

    @contextmanager
    def _faults(self, path: str) -> Iterator[None]:
        """Say in one line what went wrong with a request, and that it was stopped where it was."""
        try:
            yield
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
            if self.stopped:
                raise Stopped from None
            log.info("%s%s: %s", self.address, path, type(error).__name__)
            raise self._fault(error) from None
        except SpecviewError as error:
            if self.stopped:
                raise Stopped from None
            if self._secret is None or hidden(str(error), self._secret) == str(error):
                raise
            raise SpecviewError(hidden(error.cause, self._secret), hidden(error.mend, self._secret), usage=error.usage) from None

    def _fault(self, error: Exception) -> SpecviewError:
        where, text = str(self.address), " ".join(str(error).split())
        lowered = text.lower()
        if isinstance(error, httpx2.ConnectTimeout):
            return SpecviewError(f"{where} does not answer: no connection after {self._timeout.connect:g} s.", "Is the host up, and the port open to this machine?")
        if isinstance(error, httpx2.ReadTimeout):
            return SpecviewError(f"{where} went silent: the connection is there, and nothing comes.", "Look at the server's log; it may be busy or stuck.")
        if "certificate" in lowered:
            return SpecviewError(f"the certificate of {where} cannot be trusted: {self._shown(_certificate_words(text))}.", "Mend it on the server, or add its authority to this system's.")
        if "ssl" in lowered or "tls" in lowered:
            return SpecviewError(f"{where} does not speak TLS as expected: {self._shown(text)}.", "Is it http:// instead of https://?")
        if isinstance(error, (httpx2.ConnectError, socket.gaierror)):
            if any(part in lowered for part in _DNS):
                return SpecviewError(f"there is no host named {self.address.host}.", "Look at the address.")
            if "refused" in lowered:
                return SpecviewError(f"nothing listens at {where}: the connection was refused.", "Start the server, or look at the port.")
            return SpecviewError(f"{where} cannot be reached: {self._shown(text)}.")
        if isinstance(error, httpx2.RemoteProtocolError) and "illegal" in lowered:
            return SpecviewError(f"what answers at {where} does not speak HTTP.", "Look at the port, and whether it is https://.")
        return SpecviewError(f"the connection to {where} was cut: {self._shown(text) or type(error).__name__}.", "Look at the server's log.")

    def _refusal(self, response: httpx2.Response, path: str) -> HttpStatus:
        status, where = response.status_code, str(self.address)
        try:
            said = self._read(response)
        except (SpecviewError, httpx2.HTTPError):
            said = ""
        web = "html" in response.headers.get("content-type", "")
        words = "" if web else self._shown(_said(said))
        if status in (401, 403):
            mend = f"Set {variable(self.address)} (or SPECVIEW_API_KEY) to it."
            return HttpStatus(f"{where} wants a key{' other than the one that it got' if self._secret else ''} ({status}).", mend, status)
        if status == 404:
            what = words or "there is no such page"
            return HttpStatus(f"{where} answered {path} with 404: {what}.", "Look at the address, the port and the model's name.", status)
        if status == 429:
            return HttpStatus(f"{where} takes no more requests now (429){': ' + words if words else ''}.", "Wait, or ask with fewer at once.", status)
        if 300 <= status < 400:
            return HttpStatus(f"{where} sends elsewhere ({status}), and nothing is sent to a host that you did not name.", "Use the address that it means.", status)
        if web:
            return HttpStatus(f"a web page answers at {where} ({status}), no serving engine.", "Look at the port.", status)
        return HttpStatus(f"{where} answered {path} with {status}{': ' + words if words else ''}.", "Look at the server's log." if status >= 500 else "", status)

    def _wrong_kind(self, kind: str, text: str, wanted: str) -> SpecviewError:
        if "html" in kind or text.lstrip()[:1] == "<":
            return SpecviewError(f"a web page answers at {self.address}, no serving engine.", "Look at the port.")
        return SpecviewError(f"{self.address} answered with {kind or 'no content type'} in place of {wanted}: {self._shown(text)!r}.")

    def _shown(self, text: str) -> str:
        return hidden(short(text), self._secret)


def _authorization(secret: Secret | None) -> dict[str, str]:
    if secret is None:
        return {}
    if not secret.value.isascii() or not secret.value.isprintable():
        raise SpecviewError("the server's key has characters that a key cannot have.", "Look at where it comes from.")
    if secret.kind == "basic":
        import base64

        return {"Authorization": "Basic " + base64.b64encode(secret.value.encode()).decode()}
    return {"Authorization": f"Bearer {secret.value}"}


def _may_pass(error: Exception) -> bool:
    """Whether asking again may help: not where the host has no address or its certificate does not fit."""
    text = str(error).lower()
    return not any(part in text for part in (*_DNS, "certificate", "ssl"))


def _certificate_words(text: str) -> str:
    return text.partition("certificate verify failed:")[2].partition("(_ssl")[0].strip() or text


def _said(text: str) -> str:
    try:
        return error_words(json.loads(text))
    except (ValueError, RecursionError):
        return text
