"""The style sheet of a run's report: that of a dataset's page, charts, and the cause colours."""

from penstock.style import cause_classes
from penstock.watch.style.page_style import STYLE as BASE

STYLE = f"""{BASE}
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
