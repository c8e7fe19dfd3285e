"""What Airflow keeps in connections: the model endpoint and the storage."""
