"""The look of a dataset's page: light and dark by the reader's own setting, narrow or wide."""

STYLE = """
:root { --ink: #1c2430; --dim: #5d6878; --paper: #fbfbf9; --card: #fff; --edge: #dfe3e8;
  --kept: #2f6f9f; --gone: #c8603f; --soft: #eef2f5; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --dim: #9aa5b4; --paper: #14181e;
  --card: #1c222b; --edge: #303945; --kept: #6aaede; --gone: #e58a66; --soft: #232b36; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h1 small { color: var(--dim); font: .95rem ui-monospace, monospace; font-weight: 400; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
p, figcaption, .dim { color: var(--dim); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem;
  margin: 1.25rem 0 0; padding: 0; }
.cards div { background: var(--card); border: 1px solid var(--edge); border-radius: 8px;
  padding: .6rem .8rem; }
.cards dt { color: var(--dim); font-size: .85rem; }
.cards dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--dim); font-weight: 500; font-size: .85rem; }
td, th { padding: .25rem .75rem .25rem 0; vertical-align: middle; overflow-wrap: break-word; }
td.n, th.n { text-align: right; white-space: nowrap; }
td.bar { width: 45%; min-width: 7rem; }
tr.stage td { border-top: 1px solid var(--edge); font-weight: 600; padding-top: .45rem; }
tr.why td { color: var(--dim); font-size: .9rem; }
tr.why td:first-child { padding-left: 1rem; }
table.facts td { vertical-align: top; } .dim, section > p { overflow-wrap: anywhere; }
svg.bar { display: block; width: 100%; height: .8rem; background: var(--soft); border-radius: 2px; }
rect.kept { fill: var(--kept); } rect.gone { fill: var(--gone); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1.5rem; }
figure { margin: 0; } figcaption { font-size: .9rem; }
svg.columns { display: block; width: 100%; height: 8rem; }
line.axis { stroke: var(--edge); stroke-width: 1; vector-effect: non-scaling-stroke; }
.ticks { position: relative; height: 1.3rem; font-size: .75rem; color: var(--dim); }
.ticks span { position: absolute; } .ticks .last { right: 0; background: var(--paper); }
details { background: var(--card); border: 1px solid var(--edge); border-radius: 8px;
  margin: .5rem 0; padding: .5rem .8rem; }
details details { margin-left: .25rem; border-width: 0 0 0 2px; border-radius: 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: .85rem/1.45 ui-monospace, monospace;
  background: var(--soft); border-radius: 6px; padding: .7rem; margin: .6rem 0 .2rem;
  max-height: 24rem; overflow-y: auto; }
@media (max-width: 40rem) {
  thead { display: none; } table, tbody { display: block; } td { padding: 0; }
  tr { display: grid; grid-template-columns: minmax(0, 1fr) auto 4.5rem; gap: .1rem .5rem;
    align-items: baseline; padding: .3rem 0; }
  tr.stage { border-top: 1px solid var(--edge); }
  tr.stage td { border: 0; padding-top: 0; } tr.why { padding-left: 1rem; }
  tr.why td:first-child { padding-left: 0; }
  td.bar { grid-column: 1 / -1; width: auto; min-width: 0; } svg.bar { height: .5rem; }
  table.facts tr { display: block; }
  table.facts td[data-title] { display: flex; justify-content: space-between; gap: 1rem;
    flex-wrap: wrap; text-align: left; }
  table.facts td[data-title]::before { content: attr(data-title); color: var(--dim); }
}
@media print { details { break-inside: avoid; } }
"""
