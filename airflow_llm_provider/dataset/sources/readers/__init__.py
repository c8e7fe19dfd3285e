"""One module per file format: files in, batches of one schema out."""
