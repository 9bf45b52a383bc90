"""A model folder's configuration as transformers reads it, and what it says of folders that it cannot read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specview.engines.transformers_weights import read_config
from specview.errors import SpecviewError, UsageError


def resolved_config(folder: Path, trust_remote_code: bool = False) -> dict[str, Any]:
    """Return what transformers' own configuration class makes of config.json: defaults, old names, precedence.

    Raises SpecviewError, one line, where there is no such file or transformers refuses it.
    """
    read_config(folder)  # what is missing or damaged is said more clearly there
    from transformers import AutoConfig
    from transformers.utils import logging

    # What matters is raised; standard error is for the one line that says it.
    logging.set_verbosity_error()
    try:
        config = AutoConfig.from_pretrained(
            str(folder), trust_remote_code=trust_remote_code, local_files_only=True
        )
        found: dict[str, Any] = config.to_dict()
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ImportError, ... alike
        raise load_error(folder, error) from error
    return found


def resolved_llama(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what transformers makes of a Llama configuration. Raises ValueError for another and for what it refuses."""
    from transformers import LlamaConfig

    if config.get("model_type") != "llama":
        raise ValueError(f"this is no Llama model but {config.get('model_type')!r}")
    try:
        found: dict[str, Any] = LlamaConfig.from_dict(dict(config)).to_dict()
    except Exception as error:
        raise ValueError(first_line(error)) from error
    return found


def load_error(folder: Path, error: Exception) -> SpecviewError:
    """The one line for what transformers raised on a folder."""
    line = first_line(error)
    kind = str(read_config(folder).get("model_type", "unknown"))
    lowered = line.lower()
    if "does not recognize this architecture" in lowered or "unrecognized model" in lowered:
        return SpecviewError(
            f"This transformers version does not know the architecture {kind!r} of {folder.name}.",
            "Update transformers, or use a GGUF version with llama.cpp.",
        )
    if "unrecognized configuration class" in lowered:
        return SpecviewError(
            f"{folder.name} ({kind}) is no causal language model.", "Choose a text-generation model."
        )
    if "trust_remote_code" in lowered:
        return UsageError(
            f"{folder.name} needs Python code from its own folder to run.",
            "Tick 'trust remote code' (--trust-remote-code) if you trust its author.",
        )
    return SpecviewError(
        f"{folder.name} cannot be loaded ({line}).", "Check the folder, or choose another model."
    )


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    # "Validation error for field 'x':" says nothing without the line after it.
    said = " ".join(lines[:2]) if lines and lines[0].endswith(":") else lines[0] if lines else type(error).__name__
    return said.rstrip(".")
