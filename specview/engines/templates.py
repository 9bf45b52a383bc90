"""Chat templates of models: which there are, and rendering them in a process of their own, within limits."""

from __future__ import annotations

import atexit
import json
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from specview import child
from specview.errors import SpecviewError, UsageError

DEFAULT = "default"
"""The name of the template that a model uses unless another is chosen."""
MOST_TEMPLATE = 1_000_000
"""Characters of a template; real ones have some thousands."""
SECONDS = 1.0
"""Processor time for one rendering."""
MEGABYTES = 64
"""Memory for one rendering, besides what the chat itself takes."""
_OWN_CHARACTERS = 200_000
"""What a template may write besides four times what it is given."""
_WALL_SECONDS = 60.0
"""Time for one rendering on a clock, in case the machine is busy with other work."""
_WATCH_SECONDS = 0.02
_RAW = "Send the prompt raw (--raw)."


def choose(templates: Mapping[str, str], name: str | None) -> str:
    """Return the template of a name, or the default one where it is None.

    Raises SpecviewError where the model has none or no default, UsageError where it has none of that name.
    """
    if not templates:
        raise SpecviewError("This model has no chat template.", _RAW)
    if (found := templates.get(DEFAULT if name is None else name)) is not None:
        return found
    names = ", ".join(repr(name)[1:-1] for name in sorted(templates))[:300]
    if name is None:
        raise SpecviewError(
            f"This model has no default chat template, but named ones: {names}.",
            "Choose one (--chat-template NAME; in the window under Ctrl+,), or send the prompt raw (--raw).",
        )
    raise UsageError(f"this model has no chat template {name!r}.", f"Its templates: {names}.")


def render(template: str, context: Mapping[str, Any], name: str | None = None) -> str:
    """Render a template with plain data (strings, numbers, lists, dicts, None).

    Raises TemplateRefusal with what the template raised; SpecviewError, one line that names it by `name`, where it
    cannot be read, takes more than its limits of time and memory, or writes far more text than it is given.
    """
    what = "The model's chat template" + ("" if name is None else f" {name!r}")
    if len(template) > MOST_TEMPLATE:
        raise SpecviewError(
            f"{what} has {len(template):,} characters; specview reads {MOST_TEMPLATE:,}.", _RAW
        )
    given = json.dumps(context)
    most = _OWN_CHARACTERS + 4 * len(given)
    request = f'{{"template": {json.dumps(template)}, "context": {given}, "characters": {most}}}'.encode()
    with _lock:
        answer = _ask(request)
    if "text" in answer:
        return str(answer["text"])
    if "syntax" in answer:
        line, message = answer["syntax"]
        raise SpecviewError(f"{what} cannot be read (line {line}: {_one_line(message)}).", _RAW)
    if "refused" in answer:
        raise TemplateRefusal(_one_line(answer["refused"]))
    if "long" in answer:
        raise SpecviewError(f"{what} makes {answer['long']:,} characters of this chat.", _OTHER)
    raise SpecviewError(
        f"{what} takes more than {SECONDS:g} s or {MEGABYTES} MB to render and was stopped.", _OTHER
    )


def render_chat_text(
    template: str,
    messages: Sequence[Mapping[str, str]],
    bos_token: str | None,
    eos_token: str | None,
    name: str | None = None,
) -> str:
    """Render a chat up to the assistant's turn; raises as `render`."""
    context = {
        "messages": [dict(message) for message in messages],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        "bos_token": bos_token or "",
        "eos_token": eos_token or "",
    }
    return render(template, context, name)


_OTHER = "Send the prompt raw (--raw), or choose another chat template (--chat-template) or model."


class TemplateRefusal(Exception):
    """What a template raised, as one line without its last full stop."""


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


_lock = threading.Lock()
_process: subprocess.Popen[bytes] | None = None


def _ask(request: bytes) -> dict[str, Any]:
    """Return the process's answer; {} where it was ended for exceeding its limits."""
    memory = (MEGABYTES << 20) + 16 * len(request)  # a long chat is copied several times
    process = _running()
    assert process.stdin is not None and process.stdout is not None
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(process, memory, over), name="specview-template")
    watch.start()
    try:
        process.stdin.write(f"{len(request)} {memory} {SECONDS}\n".encode())
        process.stdin.write(request)
        process.stdin.flush()
        line = process.stdout.readline()
        answer = json.loads(line) if line.endswith(b"\n") else {}
    except OSError:
        answer = {}
    except BaseException:  # interrupted: its answer must not be taken for the next one's
        stop()
        raise
    finally:
        over.set()
        watch.join()
    if not answer or "exhausted" in answer:
        stop()
    return dict(answer)


def _running() -> subprocess.Popen[bytes]:
    global _process
    if _process is None or _process.poll() is not None:
        stop()
        pipe = subprocess.PIPE
        _process = child.start(
            "specview.engines.template_process", stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=child.environment()
        )
    return _process


def _watch(process: subprocess.Popen[bytes], memory: int, over: threading.Event) -> None:
    """End a process that exceeds its limits: for systems that do not hold it to them, and for busy ones."""
    if over.wait(_WATCH_SECONDS):
        return
    import psutil

    try:
        seen = psutil.Process(process.pid)
        end, used = time.monotonic() + _WALL_SECONDS, sum(seen.cpu_times()[:2])
        while not over.wait(_WATCH_SECONDS):
            own = sum(seen.cpu_times()[:2]) - used
            if own > SECONDS or seen.memory_info().rss > memory + (32 << 20) or time.monotonic() > end:
                process.kill()
                return
    except psutil.Error:
        return  # it has ended by itself


def stop() -> None:
    """End the process; the next rendering starts another."""
    global _process
    process, _process = _process, None
    if process is not None:
        process.kill()
        process.communicate()


atexit.register(stop)
