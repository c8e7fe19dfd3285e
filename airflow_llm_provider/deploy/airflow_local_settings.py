"""Settings of Airflow in a container, for ``$AIRFLOW_HOME/config``: tasks find loaded what they need."""

from airflow_llm_provider.preload import preload

preload()
