"""The inside of the scripted server: HTTP, script, answers, limits, records."""
