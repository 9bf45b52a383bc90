"""Which engine answers at an address: each says whose its models are."""

from __future__ import annotations

from types import ModuleType
from typing import cast

from specview.errors import SpecviewError
from specview.remote.client import Client
from specview.remote.counters import Counted, Samples, counted, samples
from specview.remote.engines import llama_server, sglang, tensorrt_llm, vllm
from specview.remote.engines.base import Adapter, Server, page

_MODULES: tuple[ModuleType, ...] = (llama_server, vllm, sglang, tensorrt_llm)
ADAPTERS: dict[str, Adapter] = {module.name: cast("Adapter", module) for module in _MODULES}
"""Every engine's file by the engine's name."""


def attach(client: Client) -> tuple[Adapter, Server]:
    """The engine and the server at the client's address. Raises SpecviewError, one line, where none of them answers."""
    found = client.get_json("/v1/models")
    models = [one for one in found.get("data") or [] if isinstance(one, dict)] if isinstance(found, dict) else []
    owners = {str(one.get("owned_by", "")) for one in models}
    for module in _MODULES:
        if module.owner in owners:
            adapter = cast("Adapter", module)
            return adapter, adapter.probe(client, models)
    said = f" (its models are owned by {', '.join(sorted(owners))})" if owners - {""} else ""
    raise SpecviewError(f"{client.address} answers{said}, and is none of {', '.join(ADAPTERS)}.", "Attach to the engine itself, not to a router before it.")


def read_counters(client: Client, adapter: Adapter) -> Samples | None:
    """The engine's counters as they stand; None where they are switched off or do not answer."""
    found = samples(page(client, adapter.names.path))
    return found or None


def between(adapter: Adapter, before: Samples | None, now: Samples | None) -> Counted | None:
    """What was counted between two readings; None where either is missing."""
    return counted(adapter.names, now, before) if before is not None and now is not None else None
