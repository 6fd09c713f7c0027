"""Texts without keys: what is printed goes into the run's folder, where others may read it."""
from __future__ import annotations

import os
import re
from typing import TextIO

SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY", "TRACKIO_WRITE_TOKEN", "HF_TOKEN",
           "HUGGING_FACE_HUB_TOKEN", "DATABRICKS_TOKEN", "AWS_SECRET_ACCESS_KEY")
USER = re.compile(r"//[^/@\s]+@")
QUERY = re.compile(r"([?&][\w.-]*(?:token|key|password|secret)[\w.-]*=)[^&\s\"']+", re.IGNORECASE)


def without_keys(text: str) -> str:
    text = QUERY.sub(r"\1***", USER.sub("//***@", text))
    for name in SECRETS:
        value = os.environ.get(name, "")
        if len(value) >= 4:
            text = text.replace(value, "***")
    return text


class WithoutKeys:
    """A stream that shows no keys, whatever library writes to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(without_keys(text))
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
