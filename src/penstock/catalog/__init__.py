"""Facts with sources: accelerators, nodes, networks, sites, prices, failure rates, model shapes."""
