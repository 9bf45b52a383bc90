"""Keys of serving engines: from the address as typed, the environment, or the system's keyring. They live in memory alone.

No key is in a settings record, a trace, a log or a command line that is shown: those hold addresses whose secret was taken out.
"""

from __future__ import annotations

import os
import re

from specview.errors import UsageError
from specview.remote.address import Address, Secret, parse

VARIABLE = "SPECVIEW_API_KEY"
"""The environment variable of every server's key; VARIABLE_HOST_PORT is one server's alone."""
KEYRING_SERVICE = "specview"
_taken: dict[str, Secret] = {}


def take(text: str, secret: Secret | None = None) -> str:
    """The address without its secret, which is remembered for this process: that in it, or the one given beside it.

    Raises UsageError where it is no address.
    """
    address = parse(text)
    if found := secret or address.secret:
        _taken[address.url] = found
    return address.url


def forget() -> None:
    """Forget what was taken."""
    _taken.clear()


def variable(address: Address) -> str:
    """The name of the environment variable that holds the key of this very server."""
    return f"{VARIABLE}_{re.sub(r'[^A-Za-z0-9]+', '_', address.host).upper()}_{address.port}"


def key_for(address: Address) -> Secret | None:
    """The key for a server, or None: as typed, from the environment, from the keyring, in this order.

    Raises UsageError where it would go over the internet in the clear.
    """
    found = address.secret or _taken.get(address.url) or _from_environment(address) or _from_keyring(address)
    if found is not None and address.public and address.scheme == "http":
        raise UsageError(f"the key for {address} would go over the internet in the clear.", "Use https://, or leave the key out.")
    return found


def hidden(text: str, secret: Secret | None) -> str:
    """The text with a secret in it, whoever put it there, replaced."""
    if secret is None or not secret.value:
        return text
    for part in {secret.value, secret.value.partition(":")[2]} - {""}:
        text = text.replace(part, "(hidden)")
    return text


def _from_environment(address: Address) -> Secret | None:
    for name in (variable(address), VARIABLE):
        if value := os.environ.get(name, "").strip():
            return Secret(value)
    return None


def _from_keyring(address: Address) -> Secret | None:
    """The key that the keyring library, where it is installed, has of service `specview` and user HOST:PORT."""
    try:
        import keyring

        found = keyring.get_password(KEYRING_SERVICE, f"{address.host}:{address.port}")
    except Exception:  # noqa: BLE001 - not installed, locked, or without a backend: there is no key then
        return None
    return Secret(found) if found else None
