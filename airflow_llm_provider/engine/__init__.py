"""Requests under limits: standard library only, no files, no vendor, no Airflow."""
