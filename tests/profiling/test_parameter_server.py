"""TensorFlow's parameter servers: the chief takes the steps, others do the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

XONAR = [sys.executable, "-c", "import sys; from xonar_prefect.cli import main; sys.exit(main())"]

# One parameter server and two workers; in one process, since TensorFlow takes seconds to import.
SERVERS = """
import json, os
import tensorflow as tf

cluster = tf.train.ClusterSpec(json.loads(os.environ["TF_CONFIG"])["cluster"])
config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)  # with fewer it may wait for ever
servers = [
    tf.distribute.Server(cluster, job_name=role, task_index=index, protocol="grpc", config=config)
    for role, index in (("ps", 0), ("worker", 0), ("worker", 1))
]
servers[0].join()
"""

CHIEF = """
import time
import tensorflow as tf
import xonar_prefect

tf.config.threading.set_inter_op_parallelism_threads(4)
strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.TFConfigClusterResolver()
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.random.normal((256, 256)))

@tf.function
def learn():
    batch = tf.ones((2048, 256))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(batch @ weights))
    weights.assign_sub(1e-3 * tape.gradient(loss, weights))

def step():
    for _ in range(2):
        coordinator.schedule(learn)
    coordinator.join()

step()
began, used = time.perf_counter(), time.process_time()
for _ in xonar_prefect.steps(range(60)):
    step()
print((time.process_time() - used) / (time.perf_counter() - began))
"""

LAUNCH = """
import json, os, random, socket, subprocess, sys

def free_address():
    # Below what the kernel gives to clients: by the time a server listens, one could have it.
    while True:
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", random.randrange(15_000, 32_000)))
            except OSError:
                continue
            return f"127.0.0.1:{candidate.getsockname()[1]}"

ps, *workers = (free_address() for _ in range(3))

def start(script, role, **more):
    cluster = {"ps": [ps], "worker": workers, **more}
    config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
    return subprocess.Popen([sys.executable, script], env={**os.environ, "TF_CONFIG": config})

servers = start(sys.argv[1], "ps")
code = start(sys.argv[2], "chief", chief=["127.0.0.1:0"]).wait()
servers.terminate()
servers.wait()
sys.exit(code)
"""


def test_the_chiefs_steps_count_with_the_work_of_all(tmp_path: Path) -> None:
    target = tmp_path / "profile.json"
    scripts = []
    for name, text in (("launch", LAUNCH), ("servers", SERVERS), ("chief", CHIEF)):
        scripts.append(tmp_path / f"{name}.py")
        scripts[-1].write_text(text)
    done = subprocess.run(
        [*XONAR, "profile", "--json", str(target), "--", sys.executable, *map(str, scripts)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    profile = json.loads(target.read_text())
    of_chief_alone = float(done.stdout) / len(os.sched_getaffinity(0))
    assert profile["steps"] >= 10
    assert profile["framework"].startswith("tensorflow ")
    assert profile["active_fraction"] > 2 * of_chief_alone
