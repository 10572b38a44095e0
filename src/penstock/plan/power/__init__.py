"""The power that nodes use while they train."""
