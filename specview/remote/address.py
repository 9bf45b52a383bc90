"""Where a serving engine answers: an http or https address. What is secret in it is taken out and never shown."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from specview.errors import UsageError

SCHEMES = ("http", "https")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_KEY_NAMES = frozenset({"key", "api_key", "api-key", "apikey", "token", "access_token", "auth"})
_API_ROOTS = ("/v1", "/v1/chat/completions", "/v1/completions", "/v1/models", "/metrics", "/health")
_OWN_NAMES = ("localhost", ".localhost", ".local", ".internal", ".lan", ".home", ".home.arpa", ".intranet", ".test")


@dataclass(frozen=True, slots=True)
class Secret:
    """A key or password; neither its repr nor its text shows it."""

    value: str = field(repr=False)
    kind: str = "bearer"

    def __str__(self) -> str:
        return "(hidden)"


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. `url` is what may be shown, kept and compared; secret is what stood in it, or None.

    kind "bearer" of a secret is a key, "basic" is `user:password`.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    secret: Secret | None = field(default=None, repr=False, compare=False)

    @property
    def url(self) -> str:
        """The address without anything secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    def __str__(self) -> str:
        return self.url

    @property
    def loopback(self) -> bool:
        """Whether it is this very machine."""
        number = _number(self.host)
        return number.is_loopback if number is not None else self.host == "localhost" or self.host.endswith(".localhost")

    @property
    def public(self) -> bool:
        """Whether it looks like one of the public internet's: a global number, or a name with a public ending.

        Told by its spelling alone: nothing is looked up.
        """
        number = _number(self.host)
        if number is not None:
            return number.is_global
        return "." in self.host and not self.host.endswith(_OWN_NAMES)


def is_address(text: str) -> bool:
    """Whether a text is meant as an address, well-formed or not."""
    return text.strip().lower().startswith(("http://", "https://"))


def parse(text: str) -> Address:
    """The address of `http(s)://HOST[:PORT][/path]`.

    User, password or key in it become its secret; a path of the API (/v1) is left out, other queries are refused. Raises UsageError,
    which shows nothing of what stood before an @ or behind a ?.
    """
    bare = text.strip()
    mend = "Use http://HOST:PORT, as in http://127.0.0.1:8080."
    try:
        parts = urlsplit(bare)
        port = parts.port
    except ValueError:
        raise UsageError("the server's address is not one: its host or port cannot be read.", mend) from None
    if parts.scheme.lower() not in SCHEMES:
        raise UsageError("the server's address begins with neither http:// nor https://.", mend)
    if not parts.hostname or any(char.isspace() or ord(char) < 32 for char in bare):
        raise UsageError("the server's address names no host.", mend)
    secret = _login(parts.username, parts.password)
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name.lower() not in _KEY_NAMES:
            raise UsageError("the server's address has a query (what stands behind the ?).", mend)
        secret = Secret(value) if value else secret
    path = parts.path.rstrip("/")
    for root in _API_ROOTS:
        if path.endswith(root):
            path = path[: -len(root)].rstrip("/")
            break
    scheme = parts.scheme.lower()
    return Address(scheme, parts.hostname.lower(), port or _DEFAULT_PORTS[scheme], path, secret)


def _login(user: str | None, password: str | None) -> Secret | None:
    user, password = unquote(user or ""), unquote(password or "")
    if user and password:
        return Secret(f"{user}:{password}", "basic")
    return Secret(user or password) if user or password else None


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
