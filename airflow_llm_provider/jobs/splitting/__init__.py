"""From a source to a plan: opened, rendered and counted, estimated, committed."""
