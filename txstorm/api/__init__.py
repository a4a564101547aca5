"""What a user implements: attempts, tuples, spouts, bolts, groupings, declared state. No behaviour, no I/O."""
