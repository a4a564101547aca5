"""Peers: each module is one side, a process that takes jobs as lines of JSON; other peers do not import txstorm."""
