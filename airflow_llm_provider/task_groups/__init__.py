"""Task groups for DAG files."""
