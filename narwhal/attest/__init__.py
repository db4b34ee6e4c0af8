"""The sidecar beside one engine: it vouches for the live process as long as that is the one it met."""
