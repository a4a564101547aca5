"""The suite: the same work for txstorm and for its peers, each a process of its own, and the figures to reach."""
