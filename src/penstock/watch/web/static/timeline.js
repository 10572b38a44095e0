// The timeline: when the run started, worked and was down, its faults and its saves.
import { el, put } from "./dom.js";
import { ago, clock, formatDuration } from "./format.js";

const WORDS = { startup: "start-up", work: "work", down: "down" };

export class Timeline {
  constructor(host) {
    this.host = host;
  }

  update({ invocations, troubles, saves }) {
    if (!invocations.length) return put(this.host, el("p", { class: "none" }, "Nothing has happened yet."));
    const from = invocations[0].start;
    const to = Math.max(...invocations.map((one) => one.end), from + 1e-3);
    const at = (t) => `${(100 * (Math.min(Math.max(t, from), to) - from)) / (to - from)}%`;
    const wide = (a, b) => `${(100 * (b - a)) / (to - from)}%`;
    const parts = invocations.flatMap((one) => one.parts.map(([part, start, end]) =>
      el("i", { "data-part": part, title: `${WORDS[part]} ${formatDuration(end - start)}, from ${clock(start)}`,
        style: { left: at(start), width: wide(start, end) } })));
    const faults = troubles.map((one) =>
      el("span", { class: `mark ${one.live ? "live" : "fault"}`, style: { left: at(one.since) }, title: this.words(one) }, "▼"));
    const saved = saves.map((one) =>
      el("span", { class: "mark save", "data-tier": one.tier, style: { left: at(one.t) }, title: `step ${one.step} saved to ${one.tier}, ${clock(one.t)}` }));
    const days = to - from > 86400;
    put(this.host,
      el("div", { class: "lanes" },
        el("div", { class: "lane thin" }, faults),
        el("div", { class: "lane" }, parts),
        el("div", { class: "lane thin" }, saved),
        el("div", { class: "times" }, [0, 1 / 3, 2 / 3, 1].map((share) =>
          el("span", {}, clock(from + share * (to - from), days))))),
      el("div", { class: "legend" },
        ["startup", "work", "down"].map((part) => el("span", {}, el("i", { style: { background: `var(--${{ startup: "info", work: "compute", down: "down" }[part]})` } }), WORDS[part])),
        el("span", {}, el("b", { class: "bad" }, "▼"), "fault"),
        el("span", {}, el("i", { style: { background: "var(--checkpoint)", borderRadius: "50%" } }), "saved")),
      this.list(troubles));
  }

  words(one) {
    return `rank ${one.rank ?? "?"}: ${one.reason || "lost"}`;
  }

  list(troubles) {
    if (!troubles.length) return el("p", { class: "none" }, "No fault so far.");
    return el("ul", { class: "list" }, [...troubles].reverse().map((one) => {
      const back = one.back === null ? "not back" : `back after ${formatDuration(one.back - one.since)}`;
      const how = one.live ? "the others went on" : one.step === null ? "" : `went on from step ${one.step}`;
      return el("li", { "data-level": one.back === null ? "bad" : "" },
        el("time", { title: ago(one.t) }, clock(one.t)), el("span", {}, this.words(one)), el("span", { class: one.back === null ? "bad" : "good" }, back),
        how && el("span", { class: "more" }, how));
    }));
  }
}
