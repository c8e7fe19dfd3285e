"""What a new Airflow starts with: settings and keys, a database, the endpoint to ask, the pools, and data to try it on."""
