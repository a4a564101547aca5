"""What a run tells about itself: progress per transaction, totals, and what is in flight."""
