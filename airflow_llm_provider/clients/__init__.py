"""The network edge: HTTP in, engine types out. Vendor errors end here."""
