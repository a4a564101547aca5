"""Effects: the driver that carries out what the coordinator decides, and the handle users hold."""
