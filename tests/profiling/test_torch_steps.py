"""Steps of real PyTorch trainings."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from xonar_prefect.profiling.marks import activated, steps
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.torch_steps import steps_seen, watching_torch
from xonar_prefect.profiling.window import Window

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]


@pytest.fixture(scope="module")
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
    return torch


@pytest.fixture
def session() -> Session:
    return Session(Window(), None)


@pytest.fixture
def watched(session: Session, torch: Any) -> Iterator[Session]:
    with activated(session), watching_torch():
        yield session


class Training:
    """A model, its optimizer, and one step of training it."""

    def __init__(self, torch: Any, kind: str = "SGD", **options: Any) -> None:
        self._torch = torch
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
        self.optimizer = getattr(torch.optim, kind)(self.model.parameters(), lr=0.01, **options)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self._torch.ones(2, 3)).sum().backward()
        self.optimizer.step()

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step()


@pytest.fixture
def training(torch: Any) -> Training:
    return Training(torch)


def timed_steps(session: Session) -> int:
    """Measured steps and those of the warm-up that were timed."""
    return session._latest.result.estimator.steps


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_every_step_of_an_optimizer_is_a_step(watched: Session, torch: Any, kind: str) -> None:
    Training(torch, kind).steps(8)
    assert watched.progress.steps_done == 8
    assert watched.progress.stepping_seconds > 0
    assert steps_seen()


def test_an_optimizer_that_calls_back_makes_one_step(watched: Session, torch: Any) -> None:
    training = Training(torch, "LBFGS")

    def closure() -> Any:
        training.optimizer.zero_grad()
        loss = training.model(torch.ones(2, 3)).square().sum()
        loss.backward()
        return loss

    for _ in range(4):
        training.optimizer.step(closure)
    assert watched.progress.steps_done == 4


def test_accumulated_gradients_make_one_step(watched: Session, training: Training) -> None:
    for _ in range(3):
        for _ in range(4):
            training.model(training._torch.ones(2, 3)).sum().backward()
        training.optimizer.step()
    assert watched.progress.steps_done == 3


def test_a_schedule_of_the_learning_rate_changes_nothing(
    watched: Session, training: Training
) -> None:
    schedule = training._torch.optim.lr_scheduler.StepLR(training.optimizer, 2)
    for _ in range(6):
        training.step()
        schedule.step()
    assert watched.progress.steps_done == 6


def test_the_two_optimizers_of_a_gan_make_one_step(watched: Session, torch: Any) -> None:
    generator, discriminator = Training(torch), Training(torch)
    for _ in range(5):
        discriminator.step()
        generator.step()
    assert watched.progress.steps_done == 5


def test_two_models_trained_in_turn_both_count(watched: Session, torch: Any) -> None:
    Training(torch).steps(6)
    Training(torch).steps(6)
    # Where the first optimizer is not gone yet, the first step of the second is not known as one.
    assert watched.progress.steps_done in (11, 12)


def test_validation_is_no_step_and_its_time_is_no_stepping_time(
    watched: Session, training: Training
) -> None:
    training.steps(4)
    before = watched.progress
    training.model.eval()
    assert watched._began is None
    training.model(training._torch.ones(2, 3))
    training.model.train()
    training.steps(2)
    assert watched.progress.steps_done == before.steps_done + 2


def test_a_checkpoint_is_no_step(watched: Session, training: Training) -> None:
    training.steps(2)
    training._torch.save(training.model.state_dict(), io.BytesIO())
    assert watched._began is None
    training.step()
    assert watched._began is not None


def test_another_models_evaluation_is_a_part_of_the_step(
    watched: Session, training: Training, torch: Any
) -> None:
    teacher = torch.nn.Linear(3, 1)
    training.steps(2)
    teacher.eval()
    training.model[0].eval()  # a frozen part, as batch normalisation often is
    assert watched._began is not None


def test_evaluation_in_every_step_is_a_part_of_it(watched: Session, training: Training) -> None:
    for _ in range(12):
        training.model.eval()
        training.model(training._torch.ones(2, 3))
        training.model.train()
        training.step()
    assert watched.progress.steps_done == 12
    assert timed_steps(watched) >= 12 - 2 - 3


def test_marks_of_the_user_win(watched: Session, training: Training) -> None:
    for _ in steps(range(3)):
        training.steps(4)
    assert watched.progress.steps_done == 3


def test_steps_on_another_thread_count(watched: Session, training: Training) -> None:
    thread = threading.Thread(target=training.steps, args=(3,))
    thread.start()
    thread.join()
    assert watched.progress.steps_done == 3


def test_a_step_that_raises_is_no_step(watched: Session, training: Training) -> None:
    training.steps(3)

    def fail() -> None:
        raise ArithmeticError("loss is not finite")

    with pytest.raises(ArithmeticError):
        training.optimizer.step(fail)
    training.step()
    assert watched.progress.steps_done == 4


def test_waiting_for_a_data_loader_is_marked_in_a_trace(
    watched: Session, training: Training, torch: Any
) -> None:
    import contextlib

    from xonar_prefect.profiling.recording import Mark

    marks: list[Mark] = []

    @contextlib.contextmanager
    def annotate(mark: Mark) -> Iterator[None]:
        yield
        marks.append(mark)

    training.step()
    watched.trace(3, annotate)
    for _ in torch.utils.data.DataLoader(torch.ones(6, 3), batch_size=2):
        training.step()
    assert marks.count(Mark.INPUT) >= 3


def test_torch_is_left_as_it_was_found(session: Session, torch: Any, training: Training) -> None:
    def looked_at() -> list[Any]:
        loader = sys.modules["torch.utils.data.dataloader"]
        return [
            vars(torch.nn.Module)["train"],
            torch.save,
            vars(loader._BaseDataLoaderIter)["__next__"],
            dict(sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks),
        ]

    before = looked_at()
    with activated(session), watching_torch(), watching_torch():
        assert all(now != then for now, then in zip(looked_at(), before, strict=True))
    assert looked_at() == before
    training.steps(3)
    assert session.progress.steps_done == 0


LATE_IMPORT = """
from xonar_prefect.profiling.marks import activated
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.torch_steps import watching_torch
from xonar_prefect.profiling.window import Window
import sys
session = Session(Window(), None)
with activated(session), watching_torch():
    assert "torch" not in sys.modules
    import torch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
print(session.progress.steps_done)
"""


def test_torch_may_be_imported_while_the_training_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE_IMPORT], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "4"
