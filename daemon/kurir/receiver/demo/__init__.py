"""The demo behind `make run`: a receiver that misbehaves on purpose, a real daemon beside it, and a tour of both.

Everything lives in a folder of its own and ends with the demo. The daemon and kurirctl are programs here, as they are
for everybody else: nothing of them is imported.
"""
