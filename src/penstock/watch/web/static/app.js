// The entry: chooses the page, follows the stream of changes, and switches the theme.
import { redraw } from "./charts.js";
import { Compare } from "./compare.js";
import { el, put } from "./dom.js";
import { RunList } from "./list.js";
import { RunPage } from "./run.js";

const link = document.getElementById("link");
const page = document.getElementById("page");
const runs = new URLSearchParams(location.search).getAll("run");

function themed() {
  const button = document.getElementById("theme");
  const set = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = theme;
    redraw();
  };
  let theme = localStorage.getItem("penstock-theme") ?? "auto";
  set(theme);
  button.addEventListener("click", () => {
    theme = { auto: "light", light: "dark", dark: "auto" }[theme];
    localStorage.setItem("penstock-theme", theme);
    set(theme);
  });
}

let stream = null;

function follow(shown) {
  if (stream) stream.close();
  const query = runs.map((run) => `run=${encodeURIComponent(run)}`).join("&");
  // In the background only the title of the tab is seen: the run is read less often.
  const own = new EventSource(`/api/stream?${query}${document.hidden ? "&slow=1" : ""}`);
  stream = own;
  const state = (name, words) => {
    link.dataset.state = name;
    link.textContent = words;
  };
  own.onopen = () => state("live", "live");
  own.onmessage = (message) => {
    state("live", "live");
    shown.update(JSON.parse(message.data));
    page.dataset.seen = String(Number(page.dataset.seen ?? 0) + 1);
  };
  own.onerror = async () => {
    if (own !== stream) return;
    state("lost", "reconnecting");
    if (own.readyState !== EventSource.CLOSED) return;
    // The server refused: show its reason.
    const answer = await fetch(`/api/runs?${query}`).catch(() => null);
    if (answer && !answer.ok && !page.dataset.seen) {
      put(page, el("p", { class: "note" }, await answer.text()));
      state("lost", "not found");
    } else setTimeout(() => follow(shown), 2000);
  };
}

const shown = runs.length > 1 ? new Compare(page, runs) : runs.length ? new RunPage(page, runs[0]) : new RunList(page);
themed();
follow(shown);
document.addEventListener("visibilitychange", () => follow(shown));
