"""Made-up rounds for the views' tests: numbers with the right shape, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from specview.decoding.ledger import Candidate, DraftedToken, FinalToken, Rider, Round
from specview.gui.state.token_layout import TokenLayout
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.settings.events import LanePrefilled, LaneRound, RaceStarted

CODE = (
    "def load_orders(path: str) -> list[dict]:\n"
    '    """Read paid orders from a CSV file.\n\n'
    "    Args:\n        path: the file to read, one order a line.\n\n"
    "    Returns:\n        a list of dicts with id, customer and amount.\n    \"\"\"\n"
    "    orders = []\n    with open(path) as f:\n        for line in f:\n"
    "            id, customer, amount = line.strip().split(',')\n"
    "            if amount != '0':\n                orders.append({'id': id, 'customer': customer})\n"
    "    return orders\n"
)
GUESSES = (" amount", " None", " item", " self", " the", " path", " file", "\n", " 0", "_id", "é")


def pieces(text: str, rng: random.Random) -> list[str]:
    """Cut a text into token-like pieces."""
    out: list[str] = []
    here = 0
    while here < len(text):
        size = rng.choice((1, 3, 4, 5, 6, 7))
        stop = min(len(text), here + size)
        while stop < len(text) and text[stop] not in " \n" and stop < here + 9:
            stop += 1
        out.append(text[here:stop])
        here = stop
    return out


def top(rng: random.Random, text: str) -> tuple[Candidate, ...]:
    """Make five likely tokens, `text` among them."""
    weights = sorted((rng.random() for _ in range(5)), reverse=True)
    total = sum(weights) * 1.1
    words = [text, *rng.sample([guess for guess in GUESSES if guess != text], 4)]
    return tuple((abs(hash(word)) % 49152, word, weight / total) for word, weight in zip(words, weights, strict=True))


def make_rounds(
    count: int, k: int = 4, *, alpha: float = 0.7, rule: str = "rejection", seed: int = 0, text: str = CODE,
    step_s: float = 0.04, drafters: Sequence[str] = ("draft",),
) -> list[Round]:
    """Make rounds that emit `text`, over and over; k 0 is plain decoding. `drafters` draft in random turns."""
    rng = random.Random(seed)
    words = iter(pieces(text * (2 + count * (k + 1) * 9 // len(text)), rng))
    rounds: list[Round] = []
    clock = 0.0
    for index in range(count):
        drafted: list[DraftedToken] = []
        rejected = False
        for _ in range(k):
            if rejected:
                drafted.append(DraftedToken(rng.randrange(49152), "ignored", q=0.3, text=rng.choice(GUESSES)))
                continue
            good = rng.random() < alpha
            word = next(words) if good else rng.choice(GUESSES)
            p, q = (rng.uniform(0.4, 0.9), rng.uniform(0.3, 0.9)) if good else (rng.uniform(0, 0.2), rng.uniform(0.3, 0.5))
            accept = min(1.0, p / q)
            u: float | None = rng.uniform(0, accept) if good else rng.uniform(accept, 1)
            margin = threshold = draw = None
            if rule in ("greedy", "typical"):
                accept, u = float(good), None
                margin = rng.uniform(0, 4) if rule == "greedy" else None
                threshold = 0.09 if rule == "typical" else None
            if rule == "match":
                accept, u, draw = p, None, rng.randrange(49152)
            p_top, q_top = top(rng, word), top(rng, word)
            token_id = p_top[0][0]
            residual = tuple((i, t, w) for i, t, w in p_top[1:4]) if not good and rule in ("rejection", "naive") else ()
            drafted.append(DraftedToken(
                token_id, "accepted" if good else "rejected", q=q, p=p, accept=accept, u=u, text=word, confidence=q,
                margin=margin, draw=token_id if draw is not None and good else draw, threshold=threshold,
                p_top=p_top, q_top=q_top, residual_top=residual, entropy=rng.uniform(0, 3),
            ))
            rejected = not good
        word = next(words)
        kind = "plain" if not drafted else "corrected" if rejected else "bonus"
        ids = top(rng, word)
        final = FinalToken(ids[0][0], kind, word, p=ids[0][2], margin=rng.uniform(0, 4), p_top=ids, entropy=1.1)
        draft_s, verify_s = k * 0.0018 * rng.uniform(0.9, 1.2), step_s * (1 + 0.07 * k) * rng.uniform(0.95, 1.1)
        clock += draft_s + verify_s + 0.0005
        rounds.append(Round(index, clock, draft_s, verify_s, 0.0005, 0.002, "" if not k else drafters[0] if len(drafters) == 1 else rng.choice(drafters), None,
                            tuple(drafted), final))
    return rounds


def lookahead_round(index: int = 0, t: float = 0.1, *, wide: int = 7, levels: int = 3, guesses: int = 5,
                    accepted: int = 2, seed: int = 0) -> Round:
    """A lookahead round: `guesses` pooled n-grams as a tree from the context, and a window that rode along.

    The second n-gram is accepted for `accepted` tokens; the first one's head was tried before and rejected.
    """
    rng = random.Random(seed)
    drafted: list[DraftedToken] = []
    parents: list[int] = []
    for guess in range(guesses):
        for depth in range(levels):
            verdict = "ignored"
            if guess == 0 and depth == 0 or guess == 1 and depth == accepted:
                verdict = "rejected"
            elif guess == 1 and depth < accepted:
                verdict = "accepted"
            parents.append(-1 if depth == 0 else len(drafted) - 1)
            word = rng.choice(GUESSES)
            drafted.append(DraftedToken(
                guess * levels + depth, verdict, q=1.0, p=0.5 if verdict == "accepted" else 0.1,  # type: ignore[arg-type]
                accept=0.1, u=0.6, text=word, p_top=top(rng, word),
            ))
    riders: list[Rider] = []
    below = list(range(-1, wide - 1))  # level 0: the context's last token, then a chain of riders
    for column in range(wide - 1):
        riders.append(Rider(1000 + column, rng.choice(GUESSES), column - 1))
    for _ in range(levels - 1):
        here = []
        for column in range(wide):
            here.append(len(riders))
            riders.append(Rider(1000 + len(riders), rng.choice(GUESSES), below[column]))
        below = here
    kind = "bonus" if accepted >= levels else "corrected"
    final = FinalToken(7, kind, " end", p=0.6, margin=1.0, p_top=top(rng, " end"), entropy=1.0)
    return Round(index, t, 0.001, 0.05, 0.0005, 0.001, "lookahead", tuple(parents), tuple(drafted), final, tuple(riders))


LANES: tuple[tuple[str, dict[str, object], float], ...] = (
    ("plain", {"method": "plain", "rule": "rejection", "k": None, "temperature": 0.7}, 0.0),
    ("draft-model", {"method": "draft-model", "draft": "smol-draft", "k": 4, "policy": "constant",
                     "rule": "rejection", "temperature": 0.7}, 0.6),
    ("prompt-lookup", {"method": "prompt-lookup", "k": 8, "policy": "constant", "rule": "rejection",
                       "temperature": 0.7, "option_ngram_max": 3, "option_ngram_min": 1}, 0.8),
    ("typical", {"method": "draft-model", "draft": "smol-draft", "k": 4, "policy": "confidence",
                 "rule": "typical", "temperature": 0.7}, 0.7),
    ("match", {"method": "draft-model", "draft": "/home/someone/models/a-draft.gguf", "k": 2, "policy": "heuristic",
               "rule": "match", "temperature": 0.7}, 0.5),
)


def make_race(lanes: int = 3, run_id: int = 1, prompt_ids: Sequence[int] = (1, 2, 3)) -> RaceModel:
    """Make a race that has started and prefilled, without rounds."""
    race = RaceModel()
    chosen = LANES[:lanes]
    race.apply(RaceStarted(run_id, tuple(prompt_ids), "prompt", tuple(lane[0] for lane in chosen),
                           tuple(lane[1] for lane in chosen), {}))
    for index in range(lanes):
        race.apply(LanePrefilled(run_id, index, 0.2))
    return race


def lane_rounds(index: int, count: int) -> list[Round]:
    """Rounds fit for one of LANES."""
    _, settings, alpha = LANES[index]
    k = settings["k"]
    return make_rounds(count, k if isinstance(k, int) else 0, alpha=alpha, rule=str(settings["rule"]), seed=index)


def stream(race: RaceModel, seconds: float, run_id: int = 1) -> None:
    """Give every lane its rounds up to a time of the virtual clock."""
    for index, _ in enumerate(race.lanes):
        for round_ in lane_rounds(index, 3000 if seconds > 20 else 600):
            if round_.t > seconds:
                break
            race.apply(LaneRound(run_id, index, round_))


def filled_lane(count: int = 30, **options: object) -> LaneModel:
    """One lane with made-up rounds."""
    lane = LaneModel("draft-model", {"method": "draft-model", "rule": options.get("rule", "rejection")})
    for round_ in make_rounds(count, **options):  # type: ignore[arg-type]
        lane.add(round_)
    return lane


def state_of(layout: TokenLayout) -> tuple[Any, ...]:
    """All that a layout shows and goes on from."""
    counts = list(layout.counts.items())
    return (layout.tokens, layout.lines, layout.first_line, counts, layout.paragraphs, layout.right_to_left, layout.settled,
            layout._outputs, layout._positions, layout._strong, layout._x, layout._break, layout._held, layout._ending)  # fmt: skip
