# Airflow with this provider: the one image of every Airflow service in docker-compose.yaml.
ARG AIRFLOW_IMAGE=apache/airflow:3.3.2-python3.12
FROM ${AIRFLOW_IMAGE}

USER root
# A named volume takes owner and content from the folder that it covers, hence these exist before any volume does.
RUN mkdir -p /data /opt/airflow/secrets /opt/airflow/service-secrets \
    && chown -R airflow:0 /data /opt/airflow/secrets /opt/airflow/service-secrets
USER airflow

COPY --chown=airflow:0 pyproject.toml README.md LICENSE /opt/provider/
COPY --chown=airflow:0 airflow_llm_provider /opt/provider/airflow_llm_provider
COPY --chown=airflow:0 airflow_llm_provider/deploy/airflow_local_settings.py /opt/airflow/config/
# Naming the version that is there keeps pip from changing Airflow itself.
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" "/opt/provider[offline,fast,redis]"
