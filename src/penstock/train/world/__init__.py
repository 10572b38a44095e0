"""Process group, device and mesh of a rank."""
