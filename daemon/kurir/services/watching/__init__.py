"""The world outside and the daemon itself: network, power, clocks, and whom to tell."""
