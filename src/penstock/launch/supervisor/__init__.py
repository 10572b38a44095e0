"""The supervisor of one host: it starts, watches and restarts the processes of ranks."""
