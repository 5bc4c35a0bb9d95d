"""The system's D-Bus: one connection for all who listen, through whichever library there is."""
