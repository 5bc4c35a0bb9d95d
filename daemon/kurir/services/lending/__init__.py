"""Jobs that local programs lease, work off, and give back."""
