"""The rules: pure, no await, no input or output, no clock; the present instant is always an argument."""
