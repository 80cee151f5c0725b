"""Train with Ray's processes, as OpenRLHF's command does: a controller, and a process that trains.

Usage: python -m rl_doctor.collectors.openrlhf tests.trainers.openrlhf.ray_job '{"steps": 3, "args": {...}}'
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ray.launcher import RayActorGroup
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

from tests.trainers.openrlhf import cpu
from tests.trainers.openrlhf import train as parts
from tests.trainers.openrlhf.settings import arguments


@ray.remote
class Policy(PolicyModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The process that trains the policy: OpenRLHF's own, with models of ours."""

    def load(self, settings: Any, folder: str) -> None:
        import deepspeed
        import torch

        cpu.prepare()
        torch.set_num_threads(1)
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
        self.strategy = parts.strategy(settings)
        torch.manual_seed(settings.train.seed)
        (self.trainer,) = parts.models(settings, self.strategy, folder)[1]
        self.actor = self.trainer.actor

    def save_checkpoint(self, **_kwargs: Any) -> None:
        pass


@ray.remote
class Controller(BasePPOTrainer):  # type: ignore[misc]
    """The controller, in a process of its own too."""

    def __init__(self, settings: Any, policy: Any) -> None:
        cpu.prepare()

        class Strategy:
            args = settings

        super().__init__(Strategy, policy, None, None, None, None, parts.Tokens())

    def fit(self, options: dict[str, Any]) -> list[dict[str, float]]:
        return parts.run(self, self.args, options)


def main(options: dict[str, Any]) -> None:
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "true"}})
    settings = arguments({"algo.kl.init_coef": 0.0, **options["args"]})
    policy = RayActorGroup(1, 1, Policy, num_gpus_per_actor=0)
    ray.get(policy.async_run_method("load", settings=settings, folder=parts.shared_model(0, 1)))
    controller = Controller.remote(settings, policy)
    logged = ray.get(controller.fit.remote(options))
    sys.stdout.write("RESULT " + json.dumps({"log": logged}) + "\n")


if __name__ == "__main__":
    main(parts.OPTIONS | json.loads(sys.argv[1]))
