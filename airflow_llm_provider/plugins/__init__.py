"""What this package adds to Airflow's API server."""
