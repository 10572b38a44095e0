// The page of one run.
import { Gradient, Loss, Rate, Rewards, Speed, Where } from "./curves.js";
import { el, facts, put, table } from "./dom.js";
import { clock, formatBytes, formatCount, formatDuration, formatLoss, formatPercent, formatSigned, formatWhole } from "./format.js";
import { pill } from "./list.js";
import { Ranks } from "./ranks.js";
import { spending, spendingFigure } from "./spending.js";
import { Timeline } from "./timeline.js";

export class RunPage {
  constructor(host, key) {
    this.key = key;
    this.known = {};
    this.title = el("div", { class: "title" });
    this.figures = el("div", { class: "figures" });
    const grid = el("div", { class: "grid" });
    put(host, this.title, this.figures, grid);
    const card = (name, title, width, body = el("div")) => {
      const tools = el("div", { class: "legend" });
      const note = el("p", { class: "says", hidden: "" });
      const made = el("section", { class: `card ${width}`, id: name }, el("header", {}, el("h2", {}, title), tools), note, body);
      grid.append(made);
      return { made, tools, note, body };
    };
    const chart = (more = "") => el("div", { class: `chart ${more}` });
    this.cards = {
      curve: card("curve", "Loss", "w7", chart()),
      plan: card("plan", "Plan against actual", "w5"),
      rewards: card("rewards", "Rewards of the pairs", "w12", chart("low")),
      speed: card("speed", "Speed", "w6", chart()),
      where: card("where", "Where the time goes", "w6", chart()),
      rate: card("rate", "Learning rate", "w6", chart("low")),
      gradient: card("gradient", "Gradient norm", "w6", chart("low")),
      ranks: card("ranks", "Ranks", "w6"),
      story: card("story", "Faults and recoveries", "w6"),
      checkpoints: card("checkpoints", "Checkpoints", "w4 third"),
      data: card("data", "Data", "w4 third"),
      energy: card("energy", "Energy and cost", "w4 third"),
      rounds: card("rounds", "Rounds", "w12"),
      tasks: card("tasks", "Tasks", "w12"),
      advice: card("advice", "To go faster or cheaper", "w5"),
      events: card("events", "Events", "w7"),
    };
    for (const name of ["energy", "rounds", "tasks", "advice", "rewards"]) this.cards[name].made.hidden = true; // until there is some
    const { curve, rate, gradient, rewards, speed, where, ranks, story } = this.cards;
    const curves = [new Loss(curve.body, curve.tools), new Rate(rate.body), new Gradient(gradient.body, gradient.tools), new Rewards(rewards)];
    this.parts = {
      curve: { update: (section) => curves.forEach((one) => one.update(section)) }, speed: new Speed(speed.body, speed.tools),
      where: new Where(where.body, where.tools), ranks: new Ranks(ranks.body, ranks.tools),
      story: new Timeline(story.body),
    };
    this.draws = {
      plan: (section) => this.plan(section), data: (section) => this.data(section),
      checkpoints: (section) => this.checkpoints(section), energy: (section) => spending(this.cards.energy, section),
      rounds: (section) => this.rounds(section),
      tasks: (section) => this.tasks(section), advice: (section) => this.advice(section), events: (section) => this.events(section),
    };
    document.getElementById("trail").textContent = key;
  }

  update(changes) {
    const changed = changes[this.key] ?? {};
    Object.assign(this.known, changed);
    const { known } = this;
    for (const [name, section] of Object.entries(changed)) {
      const card = this.cards[name];
      if (card) {
        card.made.hidden = false;
        card.note.hidden = !section.problem && !section.says;
        card.note.textContent = section.problem ? `This cannot be read: ${section.problem}` : section.says ?? "";
      }
      if (section.problem) continue;
      if (this.parts[name]) this.parts[name].update(section);
      else if (this.draws[name]) this.draws[name](section);
    }
    if (changed.headline || changed.ranks || changed.speed || changed.energy) this.head(known);
  }

  status({ headline, ranks }) {
    if (headline.status !== "running" || !ranks || ranks.problem) return headline.status;
    if (ranks.counts.fine || ranks.counts.slow) return "running";
    return ranks.counts.down ? "down" : "starting";
  }

  head(known) {
    const { headline: h, speed, energy } = known;
    if (!h || h.problem) return put(this.title, el("h1", {}, this.key), h?.problem && el("p", { class: "says" }, h.problem));
    const status = this.status(known);
    put(this.title, el("h1", {}, h.name), pill(status), !h.exact && el("span", { class: "about" }, "first estimate; reading on …"),
      el("span", { class: "about" }, [h.model, h.precision, h.layout, h.machine, h.dataset].filter(Boolean).join(" · ")));
    const share = h.steps ? Math.min(1, h.step / h.steps) : 0;
    const plan = speed?.plan;
    const against = plan && h.tokens_per_s ? `plan ${formatCount(plan.tokens_per_s)}, ${formatSigned(h.tokens_per_s / plan.tokens_per_s - 1)}` : "while stepping";
    const figure = (name, value, unit, more) => el("div", { class: "figure" }, el("span", {}, name),
      el("b", {}, value, unit && el("small", {}, ` ${unit}`)), el("span", { class: "more" }, more ?? ""));
    const running = h.status === "running";
    const left = running
      ? figure("left", formatDuration(h.left_s), "", h.left_s === null ? "" : `ends about ${clock(Date.now() / 1000 + h.left_s).slice(0, -3)}`)
      : figure("took", formatDuration(h.wall_s), "", h.ended ? clock(h.ended, true) : "");
    put(this.figures,
      figure("step", formatWhole(h.step), `of ${formatWhole(h.steps)}`, `${formatPercent(share, 0)} · ${formatCount(h.tokens)} tokens`),
      figure("loss", formatLoss(h.loss), "", h.val_loss === null ? "" : `validation ${formatLoss(h.val_loss)}`),
      figure("tokens/s", formatCount(h.tokens_per_s), "", against),
      figure("MFU", h.mfu === null ? "–" : formatPercent(h.mfu), "", h.mfu === null ? "no published peak" : "of the published peak"),
      left,
      figure("useful", formatPercent(h.useful), "", `effective ${formatPercent(h.effective)}`),
      energy && !energy.problem && spendingFigure(energy, figure),
      el("div", { class: "progress" }, el("i", { style: { width: `${100 * share}%` } })));
    document.title = running ? `${formatPercent(share, 0)} · ${formatLoss(h.loss)} · ${h.name}` : `${status} · ${h.name}`;
  }

  plan(plan) {
    const rows = plan.rows.filter((row) => row.share >= 0.0005 || row.planned_s > 0.05 || row.cause === "unexplained");
    const longest = Math.max(...rows.flatMap((row) => [row.actual_s, row.planned_s ?? 0]), 1e-9);
    const planned = plan.planned_s !== null;
    const width = (s) => `${(100 * s) / longest}%`;
    const heads = ["", ["per rank", "track"], planned ? ["planned", "n"] : ["", "n"], ["actual", "n"], ["share", "n"]];
    const cells = [el("div", { class: "row" }, heads.map((head) => el("span", { class: `head ${head[1] ?? ""}` }, head[0] ?? "")))];
    for (const row of rows) {
      const name = row.cause;
      cells.push(el("div", { class: "row", "data-cause": name },
        el("span", { class: "cause", title: row.meaning }, el("i", { style: { background: `var(--${name})` } }), name),
        el("div", { class: "bar track", title: `${name}: ${formatDuration(row.actual_s)}${planned ? `, planned ${formatDuration(row.planned_s)}` : ""}` },
          el("i", { style: { background: `var(--${name})`, width: width(row.actual_s) } }),
          planned && row.planned_s > longest / 300 && el("u", { style: { left: `calc(${width(row.planned_s)} - 1px)` } })),
        el("span", { class: "n dim" }, planned ? formatDuration(row.planned_s) : ""),
        el("span", { class: "n" }, formatDuration(row.actual_s)),
        el("span", { class: "n dim" }, formatPercent(row.share))));
    }
    cells.push(el("div", { class: "row" }, el("span", { class: "sum" }, "wall-clock"), el("span", { class: "sum track" }),
      el("span", { class: "sum n" }, planned ? formatDuration(plan.planned_s) : ""), el("span", { class: "sum n" }, formatDuration(plan.actual_s)),
      el("span", { class: "sum n" }, "100.0%")));
    put(this.cards.plan.tools, planned && el("span", {}, el("i", { style: { background: "var(--ink)", width: "2px", height: "14px" } }), "planned"));
    put(this.cards.plan.body, el("div", { class: "bars" }, cells));
  }

  advice(advice) {
    const { body, made } = this.cards.advice;
    made.hidden = !advice.list.length;
    put(body, el("ol", { class: "advice" }, advice.list.map((one) => {
      const setting = one.field && one.words.startsWith(`${one.field} = `) ? one.words.split(": ", 1)[0] : null;
      return el("li", {}, el("span", { class: "cause" }, el("i", { style: { background: `var(--${one.cause})` } }), one.cause),
        el("p", {}, setting && el("code", {}, setting), setting ? one.words.slice(setting.length + 1) : one.words));
    })));
  }

  data(data) {
    const feed = data.feed;
    const full = feed && feed.capacity ? Math.min(1, feed.ready / feed.capacity) : null;
    put(this.cards.data.body,
      full === null ? null : [el("div", { class: "dim" }, `buffer: ${formatWhole(feed.ready)} of ${formatWhole(feed.capacity)} batches ready`),
        el("div", { class: "gauge" }, el("i", { style: { width: `${100 * full}%` } }))],
      facts([
        ["dataset", data.dataset ?? "–"],
        data.samples && ["samples", formatWhole(data.samples)],
        ["trained on", `${formatCount(data.tokens)} tokens`],
        feed?.tokens_per_s && ["reads now", `${formatCount(feed.tokens_per_s)} tokens/s`],
        feed?.could_tokens_per_s && ["could read", `${formatCount(feed.could_tokens_per_s)} tokens/s`],
        ["waited for data", `${formatDuration(data.waited_s)} a rank, ${formatPercent(data.waited)}`],
        ["damaged blocks", data.skipped ? formatWhole(data.skipped) : "none"],
      ]));
  }

  checkpoints(found) {
    if (!found.kept.length) {
      return put(this.cards.checkpoints.body, el("p", { class: "none" }, found.saved ? "None is kept any more." : "None saved yet."));
    }
    put(this.cards.checkpoints.body,
      table([">step", "tier", ">size", ">age", "state"], found.kept.map((one) => [formatWhole(one.step), one.tier, formatBytes(one.bytes),
        one.t === null ? "–" : formatDuration(Math.max(0, Date.now() / 1000 - one.t)), el("span", { class: one.good ? "good" : "bad", title: one.path }, one.state)])));
  }

  rounds(found) {
    const { body, made } = this.cards.rounds;
    made.hidden = !found.rows.length;
    put(body, table(["replica", ...found.titles.map((title) => `>${title}`)], found.rows));
  }

  tasks(found) {
    const { body, made } = this.cards.tasks;
    made.hidden = !found.rows.length;
    put(body, table(["task", "metric", ...found.titles.map((title) => `>${title}`)], found.rows));
  }

  events(events) {
    const lines = events.lines.map((line) => el("li", { "data-level": line.level },
      el("time", { title: line.kind }, clock(line.t)), el("span", {}, line.words)));
    put(this.cards.events.body,
      lines.length ? el("ul", { class: "list" }, lines) : el("p", { class: "none" }, "Nothing told yet."),
      events.sample && el("details", {}, el("summary", {}, "What the model writes"),
        el("pre", {}, el("span", { class: "dim" }, events.prompt ?? ""), events.sample)));
  }
}
