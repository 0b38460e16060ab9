"""A real Lightning `Trainer`: it is seen because it calls an optimizer."""

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
        any(find_spec(name) is None for name in ("torch", "lightning")),
        reason="Lightning is not installed",
    ),
    pytest.mark.filterwarnings("ignore"),
]


def test_every_optimizer_step_of_a_trainer_is_a_step_and_validation_is_none(
    tmp_path: Path,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning
        import torch

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 1)

        def training_step(self, batch: Any, _index: int) -> Any:
            return self.linear(batch).square().mean()

        def validation_step(self, batch: Any, _index: int) -> None:
            self.log("loss", self.linear(batch).mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.ones(64, 3), batch_size=4)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        accumulate_grad_batches=2,
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    session = Session(Window(), None)
    with activated(session), watching_torch():
        trainer.fit(Model(), data, data)
    assert list(tmp_path.rglob("*.ckpt"))
    assert session.progress.steps_done == 16
    assert session.estimate is not None
    # Of sixteen three are warm-up, and one was interrupted by validation and a checkpoint.
    assert session.estimate.steps == 12
