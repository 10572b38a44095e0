// Energy, money and carbon: so far and to go, each with where it comes from.
import { el, facts, percent, put, table } from "./dom.js";

const unit = (x, steps) => {
  const [name, size] = steps.find(([, size]) => Math.abs(x) >= size) ?? steps[steps.length - 1];
  return [Number((x / size).toPrecision(3)).toLocaleString("en"), name];
};
const watthours = (joules) => unit(joules / 3600, [["MWh", 1e6], ["kWh", 1e3], ["Wh", 1]]);
const grams = (g) => unit(g, [["t", 1e6], ["kg", 1e3], ["g", 1]]);
const known = (x) => x !== null && x !== undefined;
const usd = (x) => (x >= 1000 ? `$${Math.round(x).toLocaleString("en")}` : x >= 0.095 ? `$${x.toFixed(2)}` : `$${Number(x.toPrecision(2))}`);
const said = ([value, name]) => `${value} ${name}`;

// The one that matters most to whoever pays, for the row of big figures.
export function spendingFigure({ energy, costs }, figure) {
  const toGo = (x, say) => (x ? `${say(x)} to go` : "");
  if (known(costs.usd)) return figure("cost", usd(costs.usd), "", toGo(costs.usd_to_go, usd) || "so far");
  if (!energy) return null;
  const [value, name] = watthours((energy.facility_j ?? energy.node_j).joules);
  return figure("energy", value, name, toGo(costs.kwh_to_go, (kwh) => said(watthours(3.6e6 * kwh))) || (energy.facility_j ?? energy.node_j).source);
}

export function spending({ body, tools }, { energy, costs }) {
  if (!energy && !known(costs.usd)) {
    return put(body, el("p", { class: "none" }, "The energy of this machine is not known."), how(costs.notes));
  }
  put(tools, energy && el("span", {}, `accelerators ${energy.accelerator_j.source}`));
  const amount = (one) => [said(watthours(one.joules)), el("span", { class: "dim" }, `  ${said(watthours(one.low))} – ${said(watthours(one.high))}`)];
  const both = (now, toGo, say) => [say(now), el("span", { class: "dim" }, toGo ? `, ${say(toGo)} to go` : "")];
  put(body,
    facts([
      known(costs.usd) ? ["cost", both(costs.usd, costs.usd_to_go, usd)] : ["cost", el("span", { class: "dim" }, "no price known")],
      known(costs.kwh) && ["energy", both(3.6e6 * costs.kwh, known(costs.kwh_to_go) ? 3.6e6 * costs.kwh_to_go : null, (j) => said(watthours(j)))],
      energy && ["accelerators", amount(energy.accelerator_j)],
      energy && ["machines", amount(energy.node_j)],
      energy?.facility_j && ["with cooling", amount(energy.facility_j)],
      known(energy?.watts_now) && ["draws now", `${Math.round(energy.watts_now).toLocaleString("en")} W`],
    ].filter(Boolean)),
    energy && strip(energy.by_cause_j),
    el("details", { id: "carbon" }, el("summary", {}, "CO₂e"),
      known(costs.gco2e) ? facts([["so far", said(grams(costs.gco2e))], costs.gco2e_to_go && ["to go", said(grams(costs.gco2e_to_go))]])
        : el("p", { class: "dim" }, costs.notes.find((note) => note.startsWith("CO2e")) ?? "not known")),
    energy?.devices.length ? devices(energy.devices) : null,
    how([...costs.notes, ...(energy?.notes ?? [])]));
}

// What the energy went to, in one line of colours.
function strip(joules) {
  const total = Object.values(joules).reduce((sum, one) => sum + one, 0) || 1;
  return el("div", { class: "strip" }, Object.entries(joules).filter(([, j]) => j > 0).map(([cause, j]) =>
    el("i", { title: `${cause} ${said(watthours(j))}, ${percent(j / total)}`, style: { background: `var(--${cause})`, width: `${(100 * j) / total}%` } })));
}

function devices(found) {
  const or = (x, name) => (known(x) ? `${Math.round(x)} ${name}` : "–");
  return el("details", {}, el("summary", {}, `${found.length} metered`),
    table(["device", ">draws", ">limit", ">clock", ">heat", ">energy"], found.map((one) => [
      one.name, or(one.watts, "W"), or(one.limit_w, "W"), or(one.clock_mhz, "MHz"), or(one.temperature_c, "°C"), said(watthours(one.joules))])));
}

function how(notes) {
  return el("details", {}, el("summary", {}, "How this is known"), el("ul", { class: "notes" }, [...new Set(notes)].map((note) => el("li", {}, note))));
}
