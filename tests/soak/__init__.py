"""A random soak: eight engines, two routers, clients that leave, faults, takeovers, judged from outside."""
