"""The gates of `narwhal-check`: what a fleet must show before it serves, each told by engine or edge."""
