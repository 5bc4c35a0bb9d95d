"""Documents and figures: how jobs, lanes and the daemon look to people."""
