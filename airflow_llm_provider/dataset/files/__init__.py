"""Files on storage: any fsspec URL, where what lies, and whose a destination is."""
