"""The process that renders chat templates: `python -P -m specview.engines.template_process`.

A template is a program from outside, and one line of it can ask for any amount of time or memory within a
single call into C, which nothing in the same process can stop. So this process does it, under limits of the
system's own. It imports jinja2 alone. Requests on standard input: a line "BYTES MEMORY SECONDS" (of the request, and
what the process may grow by and compute for it), then the request, JSON {template, context, characters}. Answers on
standard output, one JSON line each: {text}, {long: its characters}, {syntax: [line, message]}, {refused: reason} or
{exhausted}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_LONGEST_REASON = 300


class _GenerationBlocks(jinja2.ext.Extension):
    """Templates may mark the assistant's words with {% generation %}: a scope of its own, with no other effect."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @staticmethod
    def _body(caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which is not what models were trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=4)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlocks]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        text = _compiled(request["template"]).render(**request["context"])
    except jinja2.TemplateSyntaxError as error:
        return {"syntax": [error.lineno, str(error.message)[:_LONGEST_REASON]]}
    except MemoryError:
        raise
    # Whatever else a template raises is its refusal.
    except Exception as error:  # noqa: BLE001
        return {"refused": str(error)[:_LONGEST_REASON] or type(error).__name__}
    return {"text": text} if len(text) <= request["characters"] else {"long": len(text)}


def _limit_memory(most: int) -> None:
    """Bound the address space in bytes, on systems that hold a process to it."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _limit_seconds(seconds: float) -> None:
    """Let a signal end the process, even within C, when it has computed so long; 0 is for ever."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _own_size() -> int:
    """The process's address space in bytes; what an interpreter takes where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 64 << 20


def main() -> None:
    """Answer requests until standard input ends or one exceeds its limits."""
    base = _own_size()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while header := requests.readline().split():
        size = int(header[0])
        _limit_memory(base + int(header[1]))
        _limit_seconds(float(header[2]))
        try:
            answers.write(json.dumps(_answer(json.loads(requests.read(size)))).encode() + b"\n")
            answers.flush()
        except MemoryError:
            os.write(1, b'{"exhausted": true}\n')
            os._exit(1)
        _limit_seconds(0)


if __name__ == "__main__":
    main()
