"""The verbs: agents that accept, dispatch, deliver, watch and keep house, each with one job to do."""
