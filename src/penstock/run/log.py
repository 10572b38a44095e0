"""`[log]`: where else a run is shown."""

from pydantic import Field

from penstock.run.section import Section, Text


class LogSection(Section):
    """Where else a run is shown."""

    wandb: Text | None = Field(None, description="Weights & Biases project.")
    tensorboard: Text | None = Field(None, description="Folder for TensorBoard.")
    mlflow: Text | None = Field(None, description="MLflow tracking address.")
    webhook: Text | None = Field(
        None, description="Address that gets a JSON message at each event."
    )
