"""The reference of the cluster file, generated from its schema: the text of docs/cluster-file.md.

`python -m penstock.run.clusters.reference > docs/cluster-file.md` writes it again.
"""

import sys

from penstock.run import describe
from penstock.run.clusters.load import CLUSTER

_HEAD = """\
# The cluster file

<!-- Made by `python -m penstock.run.clusters.reference` from src/penstock/run/. Do not edit. -->

One TOML file describes the machines that a run may use: `[cluster] use = "mine.toml"` in the run
file reads it. `penstock probe` measures this machine and writes such a file, which `use = "here"`
reads; a file written by hand can be as short as this, and the catalog gives the rest:

```toml
nodes = 4
[accelerator]
name = "H100"
```

A larger one, with what the catalog cannot know:

```toml
nodes = 32
launcher = "slurm"
[accelerator]
name = "H100"
matmul.bf16 = "650 TFLOP/s"        # what large products reach here
[[tier]]
name = "node"
size = 8
bandwidth = "360 GB/s"             # per accelerator and direction
[[tier]]
name = "spine"
size = 256
bandwidth = "50 GB/s"
oversubscription = 2
[storage]
write = "20 GB/s"
[site]
name = "us-east-1"
[price]
usd_per_hour = 2.1
[failures]
node_mtbf = "900 days"
```

Every field is here, with its type, its default and its unit; a field without a default may be left
out. Plans say for each number whether it came from the file, a probe or the catalog.

## Quantities

| kind | written as |
|---|---|
| count | `8`, `"1K"` |
| size | `"80 GiB"`, `"141 GB"`, or a number of bytes |
| rate | `"50 GB/s"`, `"400 Gbit/s"` |
| FLOP/s | `"790 TFLOP/s"`, `"1.4 PFLOP/s"`, or a number of FLOP/s |
| watts | `700`, `"40 kW"`, `"2 MW"` |
| latency | `"5 us"`, `"1 ms"`, or a number of seconds |
| duration | `"90 s"`, `"2 h"`, `"900 days"` |
"""


def markdown() -> str:
    return describe.markdown(CLUSTER, _HEAD) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
