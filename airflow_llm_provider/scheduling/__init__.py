"""What Airflow is told about when a task runs: not again, again and when, put off, before or after others."""
