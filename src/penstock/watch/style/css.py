"""The style sheets of the HTML pages of a dataset and of a run, light or dark."""

from penstock.style import cause_classes

PAGE_CSS = """
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

# The report of a run adds charts, cause colours and tables of lines.
REPORT_CSS = f"""{PAGE_CSS}
{cause_classes()}.plot {{ display: flex; gap: .5rem; }}
.scale {{ display: flex; flex-direction: column; justify-content: space-between; width: 3.5rem;
  flex: none; text-align: right; font-size: .75rem; color: var(--dim);
  font-variant-numeric: tabular-nums; }}
svg.chart {{ display: block; flex: 1; min-width: 0; height: 13rem; }}
.plot + .ticks {{ margin-left: 4rem; }}
path.line {{ fill: none; stroke: var(--kept); stroke-width: 1.6;
  vector-effect: non-scaling-stroke; }}
path.validation {{ stroke: var(--gone); stroke-dasharray: 5 3; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; margin: .3rem 0; }}
.legend i, td i {{ display: inline-block; width: .7rem; height: .7rem; border-radius: 2px;
  margin-right: .4rem; }}
.legend i.loss {{ background: var(--kept); }} .legend i.validation {{ background: var(--gone); }}
td.bar svg.bar + svg.bar {{ margin-top: 2px; }} rect.planned {{ fill: var(--dim); opacity: .45; }}
tr.sum td {{ border-top: 1px solid var(--edge); font-weight: 600; }}
.done {{ color: #2b8a3e; }} .bad {{ color: var(--gone); }} .status {{ font-size: 1rem; }}
dl.lines {{ display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; }}
dl.lines dt {{ color: var(--dim); }} dl.lines dd {{ margin: 0; overflow-wrap: anywhere; }}
dl.lines dd.dim {{ font-size: .85rem; }} ol li {{ margin: .35rem 0; }}
@media (max-width: 40rem) {{
  table.causes tr {{ grid-template-columns: minmax(0, 1fr) auto 4rem; }}
  table.planned tr {{ grid-template-columns: minmax(0, 1fr) auto auto 4rem; }}
}}
@media print {{ svg, tr, figure {{ break-inside: avoid; }} body {{ background: #fff; }} }}
"""
