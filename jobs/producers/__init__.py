"""Producers of the events that example jobs read."""
