"""Frozen values, enums and identifiers. No behaviour beyond reading oneself."""
