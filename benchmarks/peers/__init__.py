"""One side each: `python -m benchmarks.peers.NAME` takes jobs as lines of JSON. Peers import no txstorm."""
