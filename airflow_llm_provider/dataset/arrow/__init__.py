"""What Arrow's tables and Parquet files need besides Arrow: schemas, rows, texts, sizes, hashes of content."""
