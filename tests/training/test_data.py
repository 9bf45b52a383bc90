import random

import pytest
import torch

from specview.errors import Stopped
from specview.training.chat import ChatLayout
from specview.training.corpus import Corpus, read_corpus
from specview.training.generate import Lane, Writer
from specview.training.plain import COPY_KINDS, plain_sequences
from specview.training.prompts import LONG_KINDS, SHORT_KINDS, PromptSource
from specview.training.shards import ShardWriter, read_shard
from specview.training.target import TargetModel
from specview.training.texts import chat_layout

CORPUS = Corpus(("def f(x):\n    return {x}",), ("A sentence. Another one.",), ("text\n" * 40,))


class LetterTokenizer:
    """One id per character; 1 opens a turn, 2 ends it."""

    eos_token_id = 2

    bos_token = eos_token = None
    chat_template = "\x01{{ messages[0].content }}\x02\x01"

    def __call__(self, text, add_special_tokens=False, split_special_tokens=False):
        return {"input_ids": [ord(c) if c in "\x01\x02" else 3 + ord(c) % 90 for c in text]}

    def decode(self, ids, skip_special_tokens=False):
        return "".join(chr(33 + int(i)) for i in ids)


def test_the_writer_labels_what_the_target_says(tmp_path, target_folder):
    torch.manual_seed(0)
    target, tokenizer = TargetModel(target_folder, longest=128), LetterTokenizer()
    prompts = PromptSource(CORPUS, [], random.Random(0))
    lanes = (Lane(3, 96, {"chat": 1.0}, 0.5), Lane(2, 128, {"extract": 1.0}, 0.0))
    writer = Writer(target, tokenizer, prompts, ShardWriter(tmp_path / "s", "w"), 0, lanes, answer_tokens=20)
    steps = iter(range(140))
    with torch.inference_mode():
        writer.run(lambda: next(steps, None) is None, lambda text: None)
        sequences = [s for file in sorted((tmp_path / "s").iterdir()) for s in read_shard(file)]
        assert {s.kind for s in sequences} <= {"chat", "extract", "invented"} and len(sequences) > 3
        for s in sequences:
            assert 0 < s.written <= 20
            logits = target.next_logits(target.prefill(s.tokens.tolist())[2])
            labelled = ~s.label_logp[:, 0].isinf()
            assert labelled[len(s.tokens) - s.written - 1 :].all()
            top = logits.log_softmax(-1).amax(-1)
            torch.testing.assert_close(s.label_logp[labelled, 0].float(), top[labelled], atol=5e-3, rtol=1e-2)


def test_typed_text_never_becomes_a_special_token():
    seen = {}

    class Spy(LetterTokenizer):
        def __call__(self, text, **options):
            seen[text] = options
            return super().__call__(text)

    layout = ChatLayout.of(Spy())
    assert layout == ChatLayout((1,), (2, 1), 2)
    layout.render(Spy(), "hello")
    assert seen["hello"]["split_special_tokens"] is True


def test_a_template_that_asks_for_too_much_gives_the_plain_layout():
    class Greedy(LetterTokenizer):
        chat_template = "{{ 9**(9**9) }}"
        bos_token_id, eos_token_id = None, 2

    assert chat_layout(Greedy()).end == 2


def test_prompts_are_filled_and_kept_apart_from_held_out_ones():
    source = PromptSource(CORPUS, ["Explain gravity to a beginner."], random.Random(1))
    texts = [source.draw({**SHORT_KINDS, **LONG_KINDS}).text for _ in range(600)]
    assert not any("{" in t.replace("{x}", "") for t in texts)
    assert source.is_held_out("explain GRAVITY to a beginner")
    assert "Explain gravity to a beginner." not in texts
    long = "please list the seven longest rivers of the whole world"
    assert PromptSource(CORPUS, [long], random.Random(1)).is_held_out(f"Hello, {long} for me")


def test_a_corpus_leaves_out_tests_and_held_out_modules(tmp_path):
    body = "def kept(value):\n    '''Doc.'''\n" + "    value += 1\n" * 12 + "    return value\n"
    filler = "X = 1\n" * 100
    for name in ("a.py", "shlex.py", "tests/b.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(filler + body.replace("kept", "kept_" + path.stem))
    corpus = read_corpus([tmp_path], 10, 0)
    assert [f.split("(")[0] for f in corpus.functions] == ["def kept_a"]


def test_reading_a_corpus_stops_and_ends_early(tmp_path):
    long = "This sentence is one of several. " * 8 + "The others are much the same as this one is."
    body = f"def kept(value):\n    '''{long}'''\n" + "    value += 1\n" * 8 + "    return value\n"
    for n in range(6):
        (tmp_path / f"a{n}.py").write_text((body.replace("kept", f"kept{n}") + "X = 1\n" * 40) * 3)
    asked = []

    def count():
        asked.append(1)
        return len(asked) > 8

    with pytest.raises(Stopped):
        read_corpus([tmp_path], 10, 0, stop=count)
    assert len(asked) == 9
    whole, early = read_corpus([tmp_path], 10, 0), read_corpus([tmp_path], 10, 0, enough=lambda: True)
    assert early.functions and early.paragraphs and early.passages
    assert len(early.functions) < len(whole.functions)


def test_copies_end_as_they_begin():
    texts = [list(range(i, i + 90)) for i in range(60)]
    kinds = set()
    layout = ChatLayout((1, 50, 1), (2, 1), 2)
    for s in plain_sequences(texts, layout, 4000, 0):
        kinds.add(s.kind)
        if s.kind != "plain":
            piece, source = s.written + 2, 3 if s.kind == "framed-copy" else 0
            assert torch.equal(s.tokens[source : source + piece], s.tokens[-piece:])
    assert kinds == {"plain", *COPY_KINDS}
