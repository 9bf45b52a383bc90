"""Early exit in the transformers engine: first layers, final norm and head; and what verification takes up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.interfaces import EarlyExitSession
from specview.decoding.ledger import Draft, Round
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.drafting.base import BaseDrafter
from specview.errors import SpecviewError
from tests.decoding.toy import constant
from tests.engines.conftest import CONTEXT, Models, same, started
from tests.engines.transformers_tiny import save_model, tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from specview.engines import transformers_engine, transformers_llama  # noqa: E402

TOKENS = [(29 * index + 3) % 256 for index in range(60)]
CLOSE = {"atol": 2e-4, "rtol": 2e-4}
LAYERS = 4


@pytest.fixture(scope="module")
def engine(models: Models) -> Any:
    return models.engine("llama-deep")


@pytest.fixture(scope="module")
def checked(models: Models) -> Any:
    return models.engine("llama-deep", True)


@pytest.fixture(params=("short", "general", "check"))
def any_engine(request: pytest.FixtureRequest, engine: Any, checked: Any) -> Iterator[Any]:
    """The CPU's short way, the general way that GPUs run, and check mode."""
    if request.param == "check":
        yield checked
        return
    runner = engine._runner
    few_rows = runner._few_rows
    if request.param == "general":
        runner._few_rows = None
    yield engine
    runner._few_rows = few_rows


@pytest.mark.parametrize("layer", range(1, LAYERS))
@pytest.mark.parametrize("size", (1, 5, 40))
def test_logits_are_those_of_the_first_layers(
    layer: int, size: int, any_engine: Any, models: Models
) -> None:
    model = models.reference("llama-deep")
    with torch.no_grad():
        states = model(torch.tensor([[*CONTEXT, *TOKENS[:size]]]), output_hidden_states=True).hidden_states
        expected = model.lm_head(model.model.norm(states[layer][0, len(CONTEXT) :]))
    session = started(any_engine)
    assert isinstance(session, EarlyExitSession)
    got = session.forward_exit(TOKENS[:size], layer)
    assert session.length == len(CONTEXT)
    torch.testing.assert_close(got, expected, **CLOSE)
    again = started(any_engine)
    one_by_one = torch.cat([again.forward_exit([token], layer) for token in TOKENS[:size]])
    same(any_engine, one_by_one, got)
    got[0, 0] = -torch.inf  # the caller's own


@given(
    layer=st.integers(1, LAYERS - 1),
    parts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    more=st.integers(0, 12),
    held=st.integers(0, len(CONTEXT)),
)
@settings(deadline=None, max_examples=25)
def test_a_forward_takes_pending_tokens_up(
    layer: int, parts: list[int], more: int, held: int, engine: Any, checked: Any
) -> None:
    """Logits, features and the cache are those of a plain forward, in rounds one after another."""
    for each in (engine, checked):
        session, plain = started(each, CONTEXT[:held]), started(each, CONTEXT[:held])
        for kept in (1, 2):
            at = 0
            for part in parts:
                session.forward_exit(TOKENS[at : at + part], layer)
                at += part
            given = session.forward(TOKENS[: at + more], features=(layer, LAYERS, "last"))
            expected = plain.forward(TOKENS[: at + more], features=(layer, LAYERS, "last"))
            assert session.length == plain.length
            same(each, given.logits, expected.logits)
            for feature, values in expected.features.items():
                same(each, given.features[feature], values)
            session.truncate(session.length - (at + more) + min(kept, at + more))
            plain.truncate(session.length)


def test_pending_tokens_skip_the_first_layers(any_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a verifying pass only what was not drafted through them runs the first layers."""
    runner, rows = any_engine._runner, []
    true_layers = runner._layers_on

    def counted(x: Any, cache: Any, rows_of: Any, first: int, last: int) -> Any:
        rows.append((first, last, x.shape[0]))
        return true_layers(x, cache, rows_of, first, last)

    monkeypatch.setattr(runner, "_layers_on", counted)
    session = started(any_engine)
    session.forward_exit(TOKENS[:2], 2)
    session.forward_exit(TOKENS[2:3], 2)
    rows.clear()
    session.forward(TOKENS[:4])
    size = 8 if any_engine.check_mode else 0
    assert rows == [(0, 2, size or 1), (2, LAYERS, size or 4)]
    rows.clear()
    session.truncate(len(CONTEXT))
    session.forward_exit(TOKENS[:3], 2)
    session.forward(TOKENS[:3])
    assert rows == [(0, 2, size or 3), (2, LAYERS, size or 3)]


BETWEEN: dict[str, tuple[Callable[[Any], Any], list[int]]] = {
    "another token": (lambda session: None, [TOKENS[0], 200, TOKENS[2]]),
    "fewer": (lambda session: None, TOKENS[:2]),
    "an earlier feature": (lambda session: None, TOKENS[:5]),
    "truncated": (lambda session: session.truncate(session.length), TOKENS[:5]),
    "truncated further": (lambda session: session.truncate(session.length - 3), TOKENS[:5]),
    "prefilled": (lambda session: session.prefill([9, 8]), TOKENS[:5]),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_anything_else_drops_what_is_pending(name: str, any_engine: Any) -> None:
    session, plain = started(any_engine), started(any_engine)
    session.forward_exit(TOKENS[:4], 2)
    step, tokens = BETWEEN[name]
    step(session)
    step(plain)
    features = (1,) if name == "an earlier feature" else ()
    given, expected = session.forward(tokens, features=features), plain.forward(tokens, features=features)
    assert session.length == plain.length
    same(any_engine, given.logits, expected.logits)
    for feature in features:
        same(any_engine, given.features[feature], expected.features[feature])
    same(any_engine, session.forward([7, 8]).logits, plain.forward([7, 8]).logits)


def test_a_tree_and_keep_drop_what_is_pending(any_engine: Any) -> None:
    session, plain = started(any_engine), started(any_engine)
    session.forward_exit(TOKENS[:4], 2)
    parents = (-1, 0, 0, 2, 3)
    same(
        any_engine, session.forward(TOKENS[:5], parents).logits, plain.forward(TOKENS[:5], parents).logits
    )
    for each in (session, plain):
        each.keep([0, 2])
    same(any_engine, session.forward([7]).logits, plain.forward([7]).logits)
    session.forward_exit(TOKENS[:4], 2)
    for each in (session, plain):
        each.keep([0])  # of the forward before
    assert session.length == plain.length == len(CONTEXT) + 3
    same(any_engine, session.forward(TOKENS[:6]).logits, plain.forward(TOKENS[:6]).logits)


def test_another_layer_starts_from_the_embedding(any_engine: Any) -> None:
    session, plain = started(any_engine), started(any_engine)
    session.forward_exit(TOKENS[:3], 1)
    expected = plain.forward_exit(TOKENS[:5], 3)
    same(any_engine, session.forward_exit(TOKENS[3:5], 3), expected[3:])
    same(
        any_engine, session.forward(TOKENS[:6]).logits, started(any_engine).forward(TOKENS[:6]).logits
    )


@pytest.mark.parametrize("block", (8, 512))
def test_the_cache_grows_between_the_halves(
    block: int, any_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first layers hold of pending tokens survives growth."""
    monkeypatch.setattr(transformers_llama, "_FIRST_BLOCK", block)
    context = [(7 * index) % 256 for index in range(25)]
    for pending in (3, 20, 39):
        session, plain = started(any_engine, context), started(any_engine, context)
        for token in TOKENS[:pending]:
            session.forward_exit([token], 3)
        got, expected = session.forward(TOKENS[:41]), plain.forward(TOKENS[:41])
        same(any_engine, got.logits, expected.logits)
        same(any_engine, session.forward([1, 2]).logits, plain.forward([1, 2]).logits)


def test_check_mode_over_the_end_of_a_block(models: Models) -> None:
    """Attention's blocks are 512 keys: pending tokens on both sides of the border."""
    model = tiny("llama-deep")
    model.config.max_position_embeddings = 1024
    folder = save_model(models.root / "long", model)
    engine = transformers_engine.load(folder, device="cpu", check_mode=True)
    context = [(7 * index) % 256 for index in range(500)]
    # The second: the pending rows end within the block, and are taken up in a pass that pads beyond it.
    for parts, size in (([1] * 20, 22), ([1, 8], 9)):
        session, plain = engine.new_session(600), engine.new_session(600)
        for each in (session, plain):
            each.prefill(context)
        at = 0
        for part in parts:
            session.forward_exit(TOKENS[at : at + part], 2)
            at += part
        assert torch.equal(session.forward(TOKENS[:size]).logits, plain.forward(TOKENS[:size]).logits)
        assert torch.equal(session.forward([5]).logits, plain.forward([5]).logits)


def test_facts_and_errors(engine: Any, models: Models) -> None:
    assert engine.exit_layers == LAYERS and engine.exit_problem is None
    session = started(engine, room=120)
    for layer in (-1, 0, LAYERS, 99):
        with pytest.raises(SpecviewError, match="1 to 3") as refusal:
            session.forward_exit([1], layer)
        assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match="at least one"):
        session.forward_exit([], 1)
    session.forward_exit([1] * 60, 2)
    with pytest.raises(SpecviewError, match="do not fit into a cache of 160"):
        session.forward_exit([1] * 61, 2)
    session.forward_exit([1] * 60, 2)
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.forward_exit([1], 1)
    other = models.engine("gpt2")
    assert other.exit_layers == 0 and "as a whole" in str(other.exit_problem)
    with pytest.raises(SpecviewError, match="cannot be left early") as refusal:
        other.new_session(8).forward_exit([1], 1)
    assert "\n" not in str(refusal.value)


def test_a_model_of_one_layer_cannot_be_left_early(tmp_path: Path) -> None:
    import transformers

    config = tiny("llama").config
    config.num_hidden_layers = 1
    engine = transformers_engine.load(
        save_model(tmp_path / "one", transformers.LlamaForCausalLM(config)), device="cpu"
    )
    assert engine.exit_layers == 0 and engine.exit_problem is not None


class EarlyExit(BaseDrafter):
    """Drafts greedily with the first layers of the target's own session."""

    name = "early-exit"

    def __init__(self, session: Any, layer: int) -> None:
        self.session, self.layer = session, layer
        self.accepted: list[int] = []

    def propose(self, context: Sequence[int], budget: int, proceed: Any = None) -> Draft:
        last, tokens = context[-1], []
        for _ in range(budget):
            last = int(self.session.forward_exit([last], self.layer)[-1].argmax())
            tokens.append(last)
        return Draft(tuple(tokens), drafter=self.name)

    def observe(self, round_: Round, features: Any) -> None:
        self.accepted.append(len(round_.emitted) - 1)


@pytest.mark.parametrize("kind", ("llama-deep", "qwen2"))
@pytest.mark.parametrize("check_mode", (True, False))
def test_greedy_self_speculation_equals_plain(kind: str, check_mode: bool, models: Models) -> None:
    engine = models.engine(kind, check_mode)
    prompt, outputs = CONTEXT[:12], []
    for layer in range(engine.exit_layers):
        session = engine.new_session(len(prompt) + 60)
        session.prefill(prompt[:-1])
        sequence = TokenSequence(list(prompt))
        steps = decode(
            session,
            sequence,
            rule="greedy",
            sampling=SamplingParams(temperature=0.0),
            max_tokens=50,
            drafter=EarlyExit(session, layer) if layer else None,
            policy=constant(3) if layer else None,
        )
        assert len(list(steps)) > 0
        outputs.append(sequence.output)
    assert len(outputs) > 1 and all(output == outputs[0] for output in outputs)
