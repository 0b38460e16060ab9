"""A real Hugging Face `Trainer`: it is seen because it calls an optimizer."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from xonar_prefect.profiling.marks import activated
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.torch_steps import watching_torch
from xonar_prefect.profiling.window import Window

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("torch", "transformers", "accelerate")),
        reason="Hugging Face's packages are not installed",
    ),
    pytest.mark.filterwarnings("ignore"),
]


def test_every_optimizer_step_of_a_trainer_is_a_step_and_evaluation_is_none(
    tmp_path: Path,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 1)

        def forward(self, inputs: Any, labels: Any = None) -> dict[str, Any]:
            predicted = self.linear(inputs)
            return {"loss": (predicted - labels).square().mean(), "logits": predicted}

    data = [{"inputs": torch.ones(3), "labels": torch.ones(1)} for _ in range(32)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=12,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    session = Session(Window(), None)
    with activated(session), watching_torch():
        Trainer(Model(), arguments, train_dataset=data, eval_dataset=data).train()
    assert session.progress.steps_done == 12
    assert session.estimate is not None
    # Of twelve, the first has no beginning, three more are warm-up, and two were interrupted.
    assert session.estimate.steps in (7, 8)
