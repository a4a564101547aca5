"""What txstorm remembers between runs: a small store with compare-and-set and a lease. No user rows live here."""
