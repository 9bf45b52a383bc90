"use strict";
// Plays a recorded race. All it shows comes from the JSON block #data (specview/library/share_page.py says what is in it);
// text is only ever set as text. Times are seconds on each lane's own clock: at a moment every lane shows what it had by then.

const race = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SPEEDS = [[1 / 8, "⅛×"], [1 / 4, "¼×"], [1 / 2, "½×"], [1, "1×"], [2, "2×"], [4, "4×"]];
const VERDICTS = { a: "accepted", r: "rejected", i: "ignored" };
const KINDS = { c: "corrected", b: "bonus", p: "plain" };
const WORDS = {
  accepted: "accepted draft", corrected: "corrected by the target", bonus: "bonus token of the target", plain: "plain target token",
  rejected: "rejected draft", ignored: "ignored draft, never judged", drafted: "drafted, not judged yet",
};
const STAGES = {
  draft: "the drafter proposes", verify: "the target verifies in one pass", accepted: "a draft is accepted", rejected: "a draft is rejected",
  ignored: "what was drafted after it is not judged", corrected: "the target puts its own token there", bonus: "the whole draft was accepted: one token more",
  plain: "the target's own next token",
};
const POINTS = 320, FEW = 24, INDENT = /^[ \t]{1,24}$/;

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "polyline", "line", "text", "circle", "rect", "polygon"].includes(tag);
  const one = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") one.textContent = value;
    else if (name === "style") Object.assign(one.style, value);
    else one.setAttribute(name, value);
  }
  one.append(...children);
  return one;
}

// -- figures ------------------------------------------------------------------------------------------------

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const fixed = (value, digits = 2) => (known(value) ? value.toFixed(digits) : "–");
const rate = (value) => (!known(value) ? "–" : value < 9.995 ? value.toFixed(2) : value < 999.5 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));
const times = (value) => (known(value) ? `${value.toFixed(value >= 0.95 && value < 1.05 ? 2 : 1)}×` : "–");
function probability(value) {
  if (!known(value)) return "–";
  if (value > 0 && value < 0.005) return value.toExponential(0).replace("e-0", "e-");
  return value >= 0.995 && value < 1 ? ">0.99" : value.toFixed(2);
}
function quoted(text) {
  if (!text) return "no text of its own";
  const names = { "\n": "newline", "\t": "tab", " ": "space" };
  if ([...text].every((one) => one in names)) {
    const runs = [...text.matchAll(/(.)\1*/gs)].map(([run, one]) => (run.length > 1 ? `${run.length} ${names[one]}s` : names[one]));
    return runs.join(", ");
  }
  const shown = text.replaceAll("\n", "↵").replaceAll("\t", "⇥");
  return `"${shown.length > 40 ? `${shown.slice(0, 20)}…${shown.slice(-19)}` : shown}"`;
}

// -- the recorded rounds -------------------------------------------------------------------------------------

class Token {
  constructor(raw, state, round, place) {
    [this.text] = raw;
    [this.state, this.round, this.place] = [state, round, place];
    if (place < 0) [, , this.p, this.pTop] = raw;
    else [, , this.p, this.q, this.accept, this.u, this.pTop, this.qTop] = raw;
  }
}

class Round {
  constructor(raw, index, lane) {
    [this.t, this.draftS, this.verifyS, this.otherS] = raw;
    [this.index, this.lane, this.parents] = [index, lane, raw[6] || null];
    this.drafted = raw[4].map((one, place) => new Token(one, VERDICTS[one[1]], this, place));
    this.final = raw[5] ? new Token(raw[5], KINDS[raw[5][1]], this, -1) : null;
    this.accepted = this.drafted.filter((one) => one.state === "accepted");
    this.thrown = this.drafted.filter((one) => one.state !== "accepted");
    this.output = this.final ? [...this.accepted, this.final] : this.accepted;
    this.judged = this.drafted.filter((one) => one.state !== "ignored").length;
    this.seconds = this.draftS + this.verifyS + this.otherS;
  }
}

// The phases of a round, as specview/decoding/phases.py has them (a test holds this to it): what each is, when it begins, the
// state of every drafted token from then on, and whether the target's own token stands.
function stages(round) {
  const begin = round.t - round.seconds, { drafted, parents } = round, states = drafted.map(() => "unseen"), found = [];
  const add = (name, t, changed = [], state = "", final = false) => {
    for (const place of changed) states[place] = state;
    found.push({ name, t: Math.min(Math.max(t, begin), round.t), states: [...states], final });
  };
  const depths = [];
  drafted.forEach((_, place) => depths.push(parents ? (parents[place] < 0 ? 0 : depths[parents[place]] + 1) : place));
  const longest = Math.max(-1, ...depths) + 1;
  for (let level = 0; level < longest; level++) {
    const places = drafted.map((_, place) => place).filter((place) => depths[place] === level);
    add("draft", begin + (round.draftS * (level + 1)) / longest, places, "drafted");
  }
  const judged = judgedIn(round), ignored = drafted.filter((one) => one.state === "ignored").map((one) => one.place);
  const left = judged.length + (ignored.length ? 1 : 0) + (round.final ? 1 : 0), verified = begin + round.draftS + round.verifyS;
  add("verify", left ? begin + round.draftS : round.t);
  let number = 0;
  const moment = () => (++number === left ? round.t : verified + (number * (round.t - verified)) / left);
  for (const place of judged) add(drafted[place].state, moment(), [place], drafted[place].state);
  if (ignored.length) add("ignored", moment(), ignored, "ignored");
  if (round.final) add(round.final.state, moment(), [], "", true);
  return found;
}

function judgedIn({ drafted, parents }) { // in the rule's order: the children of the last accepted token in turn, from the root on
  const children = new Map(), order = [];
  for (const { place, state } of drafted) {
    if (state === "ignored") continue;
    const parent = parents ? parents[place] : place - 1;
    children.set(parent, [...(children.get(parent) || []), place]);
  }
  for (let node = -1; node !== undefined;) {
    const tried = children.get(node) || [];
    children.delete(node);
    order.push(...tried);
    node = tried.find((place) => drafted[place].state === "accepted");
  }
  return [...order, ...[...children.values()].flat().sort((one, other) => one - other)];
}

class Lane {
  constructor(raw, place) {
    Object.assign(this, raw);
    this.place = place;
    this.rounds = raw.rounds.map((one, index) => new Round(one, index, this));
    this.end = this.rounds.length ? this.rounds[this.rounds.length - 1].t : 0;
    let emitted = 0, accepted = 0, judged = 0, seconds = 0;
    this.sums = this.rounds.map((round) => {
      round.first = emitted;
      emitted += round.output.length;
      accepted += round.accepted.length;
      judged += round.judged;
      seconds += round.seconds;
      return { emitted, accepted, judged, seconds };
    });
    this.emitted = emitted;
  }

  ended(seconds) { // how many rounds had ended by then
    let low = 0, high = this.rounds.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rounds[middle].t <= seconds + 1e-9) low = middle + 1; else high = middle;
    }
    return low;
  }

  stage(index, seconds) { // where a round is at a moment; null before its first phase
    if (this.staged !== index) [this.staged, this.staging] = [index, stages(this.rounds[index])];
    return this.staging.findLast((one) => one.t <= seconds + 1e-9) || null;
  }

  figures(seconds) { // at a moment; from the lane's end on those that were recorded
    const done = this.ended(seconds), sums = this.sums[done - 1], own = this.rate(seconds);
    if (done === this.rounds.length) return this.recorded;
    if (!sums) return {};
    const base = lanes.find((one) => one.plain), plain = base ? base.rate(seconds) : null;
    return { speedup: plain ? own / plain : null, rate: own, per_pass: sums.emitted / done, accept: sums.judged ? sums.accepted / sums.judged : null };
  }

  rate(seconds) { // tokens a second so far; 0 before the first round
    const sums = this.sums[this.ended(seconds) - 1];
    return sums && sums.seconds > 0 ? sums.emitted / sums.seconds : 0;
  }
}

const lanes = race.lanes.map((raw, place) => new Lane(raw, place));
const length = Math.max(0, ...lanes.map((lane) => lane.end));
const colour = (place) => `var(--lane-${place % 5})`;
const most = Math.max(1, ...lanes.map((lane) => lane.emitted));

// -- lanes ----------------------------------------------------------------------------------------------------

function marker(place) {
  const svg = make("svg", { viewBox: "-0.6 -0.6 1.2 1.2", "aria-hidden": "true" });
  const points = [null, null, "0,-.55 .56,.45 -.56,.45", "0,-.6 .6,0 0,.6 -.6,0",
    "0,-.6 .16,-.22 .57,-.19 .26,.08 .35,.49 0,.27 -.35,.49 -.26,.08 -.57,-.19 -.16,-.22"][place % 5];
  const shape = points ? make("polygon", { points }) : place % 5 ? make("rect", { x: -0.45, y: -0.45, width: 0.9, height: 0.9, rx: 0.08 })
    : make("circle", { r: 0.5 });
  shape.style.fill = colour(place);
  svg.append(shape);
  return svg;
}

// What the line that a text ends in begins with: its blanks, as long as there is no more.
function headOf(head, text) {
  const line = text.includes("\n") ? text.slice(text.lastIndexOf("\n") + 1) : head + text;
  return /\S/.test(line) ? "x" : line;
}

// The spaces before it, what was thrown away there, itself; head is what its line begins with.
function pieces(token, state = token.state, thrown = null, head = "") {
  const [, space, rest] = /^( *)(.*)$/s.exec(token.text), word = rest || space;
  const one = make("span", { class: `t ${state}`, text: word });
  if (!word) one.classList.add("empty");
  else if (/^\s*\n/.test(word)) one.classList.add("line");
  one.token = token;
  if (/^(\s*\n)?[ \t]+$/.test(word) && INDENT.test(headOf(head, word))) one.classList.add("indent");
  const indent = rest && space && INDENT.test(head + space);
  return [indent ? make("span", { class: "indent", text: space }) : rest ? space : "", thrown || "", one];
}

class LaneView {
  constructor(lane) {
    this.lane = lane;
    this.big = make("div", { class: "big", style: { color: colour(lane.place) } });
    this.line = make("p", { class: "line" });
    this.fill = make("i", { style: { background: colour(lane.place) } });
    const name = make("span", { text: lane.name, id: `lane-${lane.place}` });
    const head = make("header", {}, make("h2", { class: "name" }, marker(lane.place), name, this.big), this.line);
    if (lane.note) head.append(make("p", { class: lane.lossy ? "note lossy" : "note", text: lane.note }));
    head.append(make("div", { class: "bar", "aria-hidden": "true" }, this.fill));
    this.text = make("div", { class: "text", tabindex: 0, role: "group", "aria-label": `Output of ${lane.name}; arrow keys go through the tokens` });
    this.settled = make("div");
    this.now = make("span");
    if (race.given) this.text.append(make("span", { class: "given", text: race.given })); // of a branch: what it goes on from
    this.text.append(this.settled);
    this.box = make("section", { class: lane.won ? "lane won" : "lane", "aria-labelledby": `lane-${lane.place}` }, head, this.text);
    this.line_ = null; // the paragraph that is being filled: one that is long past is not laid out again
    this.head = headOf("", race.given || "");
    this.heads = []; // by round, the head of the line that it begins in
    this.parts = lane.rounds.map((round) => this.make(round));
    this.shown = -1;
    this.stage = "";
    this.following = false; // it opens at its beginning; played, it stays at its end
    this.text.addEventListener("scroll", () => {
      this.following = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 6;
    });
  }

  make(round) { // what a round added to the text: one part in each paragraph that it has a piece of
    const parts = [];
    const part = () => {
      if (!this.line_) this.settled.append(this.line_ = make("p"));
      if (!parts.length || parts.at(-1).parentNode !== this.line_) {
        parts.push(make("span", { class: "part", hidden: "" }));
        this.line_.append(parts.at(-1));
      }
      return parts.at(-1);
    };
    this.heads.push(this.head);
    const put = (token, mark) => {
      part().append(...pieces(token, token.state, mark, this.head));
      this.head = headOf(this.head, token.text);
      if (token.text.endsWith("\n")) this.line_ = null;
    };
    for (const token of round.accepted) put(token);
    let mark = null;
    if (round.thrown.length) {
      mark = make("span", { class: "thrown", text: `+${round.thrown.length}`, "aria-hidden": "true" });
      mark.round = round;
    }
    if (round.final) put(round.final, mark);
    else if (mark) part().append(mark);
    return parts;
  }

  show(seconds) {
    const done = this.lane.ended(seconds), before = this.shown;
    this.shown = Math.max(this.shown, 0);
    for (; this.shown < done; this.shown++) for (const part of this.parts[this.shown]) part.hidden = false;
    for (; this.shown > done; this.shown--) for (const part of this.parts[this.shown - 1]) part.hidden = true;
    if (done !== before) {
      const last = this.parts[done - 1]?.at(-1), next = this.parts[done]?.[0];
      if (next) next.before(this.now); else if (last) last.after(this.now); else this.settled.prepend(this.now);
    }
    const round = this.lane.rounds[done], stage = round ? this.lane.stage(done, seconds) : null;
    const key = stage ? `${done} ${stage.states.join()}` : "";
    if (key !== this.stage) {
      this.stage = key;
      const begun = stage ? round.drafted.filter((one) => stage.states[one.place] !== "unseen") : [];
      const few = round && round.parents ? begun.filter((one) => !["drafted", "ignored"].includes(stage.states[one.place])) : begun.slice(0, FEW);
      let head = this.heads[done];
      this.now.replaceChildren(...few.flatMap((one) => {
        const made = pieces(one, stage.states[one.place], null, head);
        head = headOf(head, one.text);
        return made;
      }));
      if (begun.length > few.length) this.now.append(make("span", { class: "count", text: ` ${begun.length - few.length} drafted` }));
    }
    const figures = this.lane.figures(seconds);
    this.big.textContent = known(figures.speedup) ? (this.lane.plain ? "1×" : times(figures.speedup)) : "";
    const bold = (text) => make("b", { text }), parts = [bold(rate(figures.rate)), " tok/s"];
    if (!this.lane.plain) parts.push(" · ", bold(fixed(figures.per_pass)), " tokens a pass · accepts ", bold(fixed(figures.accept)));
    if (!this.lane.plain && this.lane.k) parts.push(" · k ", bold(String(this.lane.k)));
    this.line.replaceChildren(...parts);
    this.fill.style.width = `${(100 * (done ? this.lane.sums[done - 1].emitted : 0)) / most}%`;
    if (this.following) this.text.scrollTop = this.text.scrollHeight;
  }

  tokens() { // those that can be pointed at now
    return [...this.text.querySelectorAll(".t, .thrown")].filter((one) => !one.closest("[hidden]"));
  }
}

// -- a token's own numbers ---------------------------------------------------------------------------------------

const tip = $("tip");
let pointed = null;

function describe(element) {
  if (element.round) {
    const { round } = element, rejected = round.thrown.filter((one) => one.state === "rejected");
    const list = round.thrown.slice(0, 12).map((one) => `${quoted(one.text)} ${one.state}`);
    if (round.thrown.length > 12) list.push(`and ${round.thrown.length - 12} more`);
    return [make("p", { class: "what", text: `${round.thrown.length} drafts thrown away in round ${round.index}` }),
      make("p", { text: list.join(", ") }), ...(rejected.length ? numbers(rejected[0], `${quoted(rejected[0].text)}: `) : [])];
  }
  const { token } = element, { round } = token, { lane } = round;
  const position = round.first + (token.place < 0 ? round.accepted.length : Math.max(0, round.accepted.indexOf(token)));
  const state = element.className.split(" ").find((one) => one in WORDS);
  const draft = token.place < 0 ? "" : ` · draft ${token.place + 1} of ${round.drafted.length}`;
  const what = [make("p", { class: "what", text: `${quoted(token.text)}: ${WORDS[state]}` }),
    make("p", { text: `${lane.name} · round ${round.index} · position ${position}${draft}` })];
  if (token.state === "corrected" && round.thrown.length) {
    what.push(make("p", { text: `in place of ${quoted((round.thrown.find((one) => one.state === "rejected") || round.thrown[0]).text)}` }));
  }
  return [...what, ...numbers(token)];
}

function numbers(token, name = "") {
  const { rule } = token.round.lane, parts = [], found = [];
  if (known(token.p)) parts.push(`p ${probability(token.p)}`);
  if (known(token.q)) parts.push(`q ${probability(token.q)}`);
  if (known(token.accept)) parts.push(rule === "rejection" || rule === "naive" ? `accept = min(1, p/q) = ${probability(token.accept)}` : `accept ${probability(token.accept)}`);
  if (known(token.u)) parts.push(`u ${probability(token.u)} → ${token.state}`);
  if (parts.length) found.push(make("p", { text: name + parts.join(" · ") }));
  const q = new Map(token.qTop || []), rows = new Map((token.pTop || []).map(([text, p]) => [text, p]));
  for (const text of q.keys()) if (!rows.has(text)) rows.set(text, null);
  if (rows.size) {
    const table = make("table");
    for (const [text, p] of [...rows].slice(0, 6)) {
      const bars = make("td", { style: { width: "90px" } });
      for (const [value, ink] of [[p, "var(--p-ink)"], [q.get(text), "var(--q-grey)"]]) {
        if (known(value)) bars.append(make("i", { style: { width: `${Math.max(1, 90 * value)}px`, background: ink } }));
      }
      const said = q.size ? `${probability(p)} / ${probability(q.get(text))}` : probability(p);
      table.append(make("tr", {}, make("td", { text: quoted(text) }), bars, make("td", { text: said })));
    }
    found.push(table, make("p", { text: q.size ? "likeliest: p target / q draft, at temperature 1" : "likeliest: p target, at temperature 1" }));
  }
  return found;
}

function point(element) {
  if (pointed) pointed.classList.remove("at");
  pointed = element;
  tip.hidden = !element;
  if (!element) return;
  tip.replaceChildren(...describe(element));
  const at = element.getClientRects()[0] || element.getBoundingClientRect(), box = tip.getBoundingClientRect();
  const below = at.bottom + 8 + box.height < innerHeight;
  tip.style.left = `${Math.max(6, Math.min(at.left, innerWidth - box.width - 8))}px`;
  tip.style.top = `${below ? at.bottom + 8 : Math.max(6, at.top - box.height - 8)}px`;
}

function mark(element) { // with the keyboard, or a tap
  point(element);
  if (element) {
    element.classList.add("at");
    element.scrollIntoView({ block: "nearest" });
    point(element), element.classList.add("at");
  }
}

// -- plots -----------------------------------------------------------------------------------------------------

const PLOTS = [
  ["Acceptance rate", "accepted / judged", (sums) => (sums.judged ? sums.accepted / sums.judged : NaN), fixed, 1],
  ["Tokens per target pass", "emitted / passes", (sums, round) => sums.emitted / (round + 1), fixed, 2],
  ["Speed", "tokens/s", (sums) => (sums.seconds > 0 ? sums.emitted / sums.seconds : NaN), rate, 0],
];
const STEPS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

class PlotView {
  constructor([title, formula, value, form, floor]) {
    Object.assign(this, { title, form });
    this.readout = make("output");
    this.svg = make("svg", { role: "img", "aria-label": `${title}, ${formula}, over output tokens`, preserveAspectRatio: "none" });
    this.box = make("div", { class: "plot" }, make("h2", {}, title, make("span", { text: formula }), this.readout), this.svg);
    this.curves = lanes.filter((lane) => !(floor === 1 && lane.plain)).map((lane) => {
      const stride = Math.max(1, Math.ceil(lane.rounds.length / POINTS)), points = [];
      lane.sums.forEach((sums, round) => {
        const y = value(sums, round);
        if (Number.isFinite(y) && (round % stride === 0 || round === lane.sums.length - 1)) points.push({ round, x: sums.emitted, y });
      });
      return { lane, points, line: make("polyline", { style: { stroke: colour(lane.place), strokeDasharray: lane.plain ? "4 3" : "" } }),
        head: make("circle", { r: 3, style: { fill: colour(lane.place) } }) };
    });
    const top = Math.max(floor, ...this.curves.flatMap((one) => one.points.map((point) => point.y)), 1e-9);
    const scale = 10 ** Math.floor(Math.log10(top));
    this.top = STEPS.map((step) => step * scale).find((step) => step >= top * (1 - 1e-9)) || 10 * scale;
    this.svg.addEventListener("pointermove", (event) => this.read(event));
    this.svg.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
  }

  fit() {
    const wide = this.svg.clientWidth || 300, high = this.svg.clientHeight || 112;
    Object.assign(this, { left: 30, right: wide - 8, upper: 8, lower: high - 20 });
    this.svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    const inner = [];
    for (const part of [0, 0.5, 1]) {
      const y = this.y(part * this.top), digits = this.top >= 10 ? 0 : this.top > 2 ? 1 : 2;
      inner.push(make("line", { class: "grid", x1: this.left, x2: this.right, y1: y, y2: y }),
        make("text", { x: this.left - 5, y: y + 3.5, "text-anchor": "end", text: (part * this.top).toFixed(digits) }));
    }
    inner.push(make("text", { x: this.left, y: high - 5, text: "0" }),
      make("text", { x: (this.left + this.right) / 2, y: high - 5, "text-anchor": "middle", text: "output tokens" }),
      make("text", { x: this.right, y: high - 5, "text-anchor": "end", text: `${most}` }));
    for (const one of this.curves) {
      one.drawn = one.points.map(({ x, y }) => `${this.x(x).toFixed(1)},${this.y(y).toFixed(1)}`);
      one.count = -1;
    }
    this.svg.replaceChildren(...inner, ...this.curves.flatMap(({ line, head }) => [line, head]));
  }

  x(tokens) { return this.left + ((this.right - this.left) * tokens) / most; }

  y(value) { return this.lower - ((this.lower - this.upper) * value) / this.top; }

  show(seconds) {
    for (const one of this.curves) {
      const done = one.lane.ended(seconds);
      let count = 0, high = one.points.length;
      while (count < high) {
        const middle = (count + high) >> 1;
        if (one.points[middle].round < done) count = middle + 1; else high = middle;
      }
      if (count === one.count) continue;
      one.count = count;
      one.line.setAttribute("points", one.drawn.slice(0, count).join(" "));
      one.head.style.display = count ? "" : "none";
      if (count) {
        const [x, y] = one.drawn[count - 1].split(",");
        one.head.setAttribute("cx", x);
        one.head.setAttribute("cy", y);
      }
    }
  }

  read(event) { // the values nearest to the pointer
    const box = this.svg.getBoundingClientRect(), x = ((event.clientX - box.left - this.left) / (this.right - this.left)) * most;
    const said = this.curves.filter((one) => one.count > 0).map((one) => {
      const near = one.points.slice(0, one.count).reduce((best, point) => (Math.abs(point.x - x) < Math.abs(best.x - x) ? point : best));
      return `${one.lane.name} ${this.form(near.y)}`;
    });
    this.readout.textContent = x >= 0 && said.length ? `${Math.round(Math.min(x, most))}: ${said.join(", ")}` : "";
  }
}

// -- time ---------------------------------------------------------------------------------------------------------

const views = lanes.map((lane) => new LaneView(lane));
const plots = PLOTS.map((one) => new PlotView(one));
const player = { seconds: length, speed: 1, playing: false, from: 0, since: 0 };

function draw() {
  for (const one of views) one.show(player.seconds);
  for (const one of plots) one.show(player.seconds);
  $("scrubber").value = player.seconds;
  $("scrubber").setAttribute("aria-valuetext", `${player.seconds.toFixed(1)} of ${length.toFixed(1)} seconds`);
  $("clock").textContent = `${player.seconds.toFixed(2)} of ${length.toFixed(2)} s${player.speed === 1 ? ", true speed" : ""}`;
  if (pointed && !pointed.isConnected) point(null);
}

function seek(seconds) {
  for (const one of views) one.following = true;
  player.seconds = Math.min(Math.max(seconds, 0), length);
  [player.from, player.since] = [player.seconds, performance.now()];
  draw();
}

function play(on = !player.playing) {
  if (on && player.seconds >= length) seek(0);
  player.playing = on && length > 0;
  [player.from, player.since] = [player.seconds, performance.now()];
  $("play").textContent = player.playing ? "❚❚" : "▶";
  $("play").setAttribute("aria-label", player.playing ? "Pause" : "Play");
  for (const one of views) one.following = true;
  if (player.playing) requestAnimationFrame(tick);
}

function tick(now) {
  if (!player.playing) return;
  player.seconds = Math.min(length, player.from + Math.max(0, (now - player.since) / 1000) * player.speed);
  draw();
  if (player.seconds >= length) play(false);
  else requestAnimationFrame(tick);
}

function setSpeed(speed) {
  player.speed = speed;
  [player.from, player.since] = [player.seconds, performance.now()];
  for (const one of $("speeds").children) {
    const on = Number(one.dataset.speed) === speed;
    one.setAttribute("aria-checked", String(on));
    one.tabIndex = on ? 0 : -1;
  }
  draw();
}

const ends = [...new Set([0, ...lanes.flatMap((lane) => lane.rounds.map((round) => round.t))])].sort((a, b) => a - b);
let steps = null; // every stage of every round in order, made when first asked for

function stepRound(by) {
  play(false);
  const next = by > 0 ? ends.find((one) => one > player.seconds + 1e-6) : ends.findLast((one) => one < player.seconds - 1e-6);
  seek(next === undefined ? (by > 0 ? length : 0) : next);
}

function stepPhase(by) {
  play(false);
  steps ||= lanes.flatMap((lane) => lane.rounds.flatMap((round) => stages(round).map(({ t, name }) => ({ t, name, round }))))
    .sort((a, b) => a.t - b.t);
  const next = by > 0 ? steps.find((one) => one.t > player.seconds + 1e-6) : steps.findLast((one) => one.t < player.seconds - 1e-6);
  seek(next ? next.t : by > 0 ? length : 0);
  if (next) $("clock").textContent = `${next.round.lane.name}, round ${next.round.index}: ${STAGES[next.name]}`;
}

// -- the page -----------------------------------------------------------------------------------------------------

function isLight() {
  return document.documentElement.classList.contains("light");
}

function setTheme(light) {
  document.documentElement.classList.toggle("light", light);
  $("theme").title = light ? "Dark (T)" : "Light (T)";
}

function build() {
  document.title = race.title;
  $("title").textContent = race.title;
  $("headline").textContent = race.headline;
  $("rest").textContent = race.rest;
  $("protocol").textContent = race.protocol;
  $("prompt").hidden = !race.prompt;
  $("prompt").firstElementChild.textContent = `Prompt: ${race.prompt.slice(0, 300).replace(/\s+/g, " ")}`;
  $("prompt").lastElementChild.textContent = race.prompt;
  $("made").textContent = race.made;
  const legend = [["accepted", "accepted"], ["corrected", "corrected"], ["bonus", "bonus"], ["thrown", "+2 rejected"]];
  const tips = { accepted: "A drafted token that the rule accepted", corrected: "The target's token in place of the first rejected draft",
    bonus: "All drafts were accepted: one more token from the same target pass", thrown: "So many drafts were thrown away there" };
  for (const [name, text] of legend) {
    const sample = make("span", { class: name === "thrown" ? "" : `t ${name}`, text, style: name === "thrown" ? { color: "var(--rejected)" } : {} });
    const entry = make("button", { type: "button", "aria-pressed": "true", title: tips[name] }, sample);
    entry.addEventListener("click", () => {
      const off = document.body.classList.toggle(`no-${name}`);
      entry.setAttribute("aria-pressed", String(!off));
    });
    $("legend").append(entry);
  }
  $("lanes").append(...views.map((one) => one.box));
  $("plots").append(...plots.map((one) => one.box));
  for (const [speed, text] of SPEEDS) {
    const one = make("button", { type: "button", role: "radio", "data-speed": speed, text, "aria-label": `${text.replace("×", "")} times true speed` });
    one.addEventListener("click", () => setSpeed(speed));
    $("speeds").append(one);
  }
  $("scrubber").max = length;
  for (const one of plots) one.fit();
}

function listen() {
  $("play").addEventListener("click", () => play());
  $("start").addEventListener("click", () => seek(0));
  $("round").addEventListener("click", () => stepRound(1));
  $("round-back").addEventListener("click", () => stepRound(-1));
  $("phase").addEventListener("click", () => stepPhase(1));
  $("phase-back").addEventListener("click", () => stepPhase(-1));
  $("scrubber").addEventListener("input", (event) => seek(Number(event.target.value)));
  $("theme").addEventListener("click", () => setTheme(!isLight()));
  const wish = matchMedia("(prefers-color-scheme: light)");
  setTheme(wish.matches);
  wish.addEventListener("change", () => setTheme(wish.matches));
  let before = false;
  addEventListener("beforeprint", () => { play(false); seek(length); before = isLight(); setTheme(true); });
  addEventListener("afterprint", () => setTheme(before));
  new ResizeObserver(() => { for (const one of plots) { one.fit(); one.show(player.seconds); } }).observe($("plots"));
  for (const view of views) {
    view.text.addEventListener("pointerover", (event) => { if (!tip.pinned) point(event.target.closest(".t, .thrown")); });
    view.text.addEventListener("pointerleave", () => { if (!tip.pinned) point(null); });
    view.text.addEventListener("click", (event) => {
      const found = event.target.closest(".t, .thrown");
      tip.pinned = Boolean(found);
      mark(found);
    });
    view.text.addEventListener("blur", () => { tip.pinned = false; point(null); });
  }
  addEventListener("keydown", keys);
}

function keys(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const { key, target } = event;
  const view = views.find((one) => one.text === target), by = { ArrowRight: 1, ArrowLeft: -1 }[key];
  if (view && by) {
    const tokens = view.tokens(), at = tokens.indexOf(pointed);
    tip.pinned = true;
    mark(tokens[at < 0 ? (by > 0 ? 0 : tokens.length - 1) : Math.min(Math.max(at + by, 0), tokens.length - 1)] || null);
  } else if (key === "Escape") {
    tip.pinned = false;
    point(null);
  } else if (target.closest("#speeds") && by) {
    const speeds = SPEEDS.map(([speed]) => speed), next = speeds[Math.min(Math.max(speeds.indexOf(player.speed) + by, 0), speeds.length - 1)];
    setSpeed(next);
    $("speeds").querySelector("[aria-checked=true]").focus();
  } else if (key === " " && target.matches("button, summary")) {
    return;
  } else if (target.matches("input, pre") && key !== " ") {
    return;
  } else if (key === " ") play();
  else if (by) stepRound(by);
  else if (key === "." || key === ",") stepPhase(key === "." ? 1 : -1);
  else if (key === "Home" && !view) seek(0);
  else if (key === "End" && !view) seek(length);
  else if (key === "+" || key === "-") {
    const speeds = SPEEDS.map(([speed]) => speed);
    setSpeed(speeds[Math.min(Math.max(speeds.indexOf(player.speed) + (key === "+" ? 1 : -1), 0), speeds.length - 1)]);
  } else if (key === "t" || key === "T") setTheme(!isLight());
  else return;
  event.preventDefault();
}

build();
listen();
setSpeed(1);
