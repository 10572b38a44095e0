"""A run on several hosts: lease, membership, links and tunnels."""
