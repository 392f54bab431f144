"""transformers' `generate` and pipelines, which call the model themselves: found out, counted, and answered the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers (make test-engines)")

from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    pipeline,
)

from overdrive.engines.onnx_runtime import OnnxRuntime  # noqa: E402
from overdrive.engines.openvino import OpenVino  # noqa: E402
from overdrive.worker.recording import Recorder  # noqa: E402
from overdrive.worker.clock import InferenceClock  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402
