"""Several hosts as one run: lease, membership, links, tunnels."""
