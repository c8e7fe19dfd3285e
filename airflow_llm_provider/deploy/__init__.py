"""What `docker-compose.yaml` runs before Airflow's services start: secrets, the connection, sample data."""
