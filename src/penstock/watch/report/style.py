"""The look of a run's report: that of a dataset's page, and colours for the causes."""

from penstock.ledger.causes import Cause
from penstock.watch.style.page_style import STYLE as BASE

# For light and for dark paper; the page of a running run has the same.
COLOURS = {
    Cause.COMPUTE: ("#12866f", "#2bb091"),
    Cause.COMMUNICATE: ("#2f7fd1", "#4f9df0"),
    Cause.BUBBLE: ("#86bdea", "#9ccbf5"),
    Cause.PEER_WAIT: ("#dda000", "#f0b429"),
    Cause.DATA_WAIT: ("#e8710a", "#ff922b"),
    Cause.CHECKPOINT: ("#8458c9", "#a98be8"),
    Cause.EVALUATE: ("#c270c7", "#dd9be2"),
    Cause.STARTUP: ("#6f8196", "#7f92a8"),
    Cause.DOWN: ("#d92d2d", "#ff5c5c"),
    Cause.REDO: ("#9c1f4e", "#e0558b"),
    Cause.UNEXPLAINED: ("#b4bcc4", "#56626d"),
}


def _colours(place: int) -> str:
    kinds = (
        f".c-{c} {{ fill: {pair[place]}; background: {pair[place]}; }}"
        for c, pair in COLOURS.items()
    )
    return "\n".join(kinds)


STYLE = f"""{BASE}
{_colours(0)}
@media (prefers-color-scheme: dark) {{
{_colours(1)}
}}
.plot {{ display: flex; gap: .5rem; }}
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
