"""Airflow as processes of this machine, in one folder."""
