"""Public doubles for tests: a manual clock, a scripted client, a scripted server."""
