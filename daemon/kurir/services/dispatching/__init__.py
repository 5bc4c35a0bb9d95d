"""Which lanes may send, whose turn it is, and what the end of an attempt teaches."""
