"""Every way a simulated engine can misbehave, tried on a whole router from outside (docs/failures.md)."""
