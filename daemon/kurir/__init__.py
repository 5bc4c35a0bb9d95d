"""kurird: a local daemon that keeps what programs want delivered and delivers it once the network really works."""

__version__ = "0.1.0"
