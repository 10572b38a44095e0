"""Packing: how full the bins are, and what it costs, for lengths with a long tail.

python benchmarks/pack.py [--documents 60000]
"""

import argparse
import time

import numpy as np

from penstock.data.tokenize.pack import lay_out_bins, pack_documents

# Median and spread of log-normal lengths, tokens.
KINDS = {"pages": (665, 1.2), "conversations": (330, 0.8)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=60_000)
    options = parser.parse_args()
    for kind, (median, spread) in KINDS.items():
        for sequence in (512, 2048, 8192, 131_072):
            rng = np.random.default_rng(0)
            drawn = rng.lognormal(np.log(median), spread, options.documents)
            lengths = np.maximum(1, drawn).astype(np.int64)
            tokens = np.zeros(lengths.sum(), "<u2")
            start = time.process_time()
            bins = pack_documents(lengths, sequence)
            packed = time.process_time()
            lay_out_bins(tokens, np.append(0, np.cumsum(lengths)), None, bins, 0, sequence)
            laid = time.process_time()
            print(
                f"{kind:14} {sequence:7} tokens a bin: "
                f"{100 * len(tokens) / (len(bins) * sequence):7.3f} % full, "
                f"pack {packed - start:.2f} s, lay out {len(tokens) / 1e6:.0f} M tokens "
                f"{laid - packed:.2f} s"
            )


if __name__ == "__main__":
    main()
