"""The consoles of slime, ROLL, OpenRLHF, minimind, prime-rl, NeMo-RL and AReaL, in the form in which each prints."""

import math
from pathlib import Path

import pytest

from rl_doctor.collectors.importers.registry import Fit
from tests.unit.collectors.importers.texts import importer_of, opened, values

MANAGER = "(RolloutManager pid=18) [2026-01-15 07:57:53] rollout.py:1193 - "
ACTOR = "(MegatronTrainRayActor pid=9, ip=10.0.0.1) [2026-01-15 07:58:53] model.py:5 - "
SLIME = (
    f"{MANAGER}eval 0: {{'eval/aime': 0.07, 'eval/aime-truncated_ratio': 0.5}}\n"
    f"{MANAGER}perf 0: {{'rollout/response_len/mean': 277.7, 'perf/rollout_time': 37.1}}\n"
    f"{ACTOR}rollout 0: {{'rollout/raw_reward': 0.25, 'rollout/log_probs': -0.2}}\n"
    f"{ACTOR}step 0: {{'train/loss': 0.1, 'train/grad_norm': nan, 'train/step': 0}}\n"
    f"{ACTOR}step 1: {{'train/loss': 0.2, 'train/grad_norm': 0.5, 'train/step': 1}}\n"
    f"{ACTOR}critic-step 1: {{'train/critic-value_loss': 3.0, 'train/step': 1}}\n"
    f"{MANAGER}rollout 1: done\n"
    f"{ACTOR}rollout 1: {{'rollout/raw_reward': 0.5, 'rollout/log_probs': -0.3}}\n"
    f"{ACTOR}step 2: {{'train/loss': 0.3, 'train/grad_norm': 0.5, 'train/step': 2}}\n"
    f"{ACTOR}step 3: {{'train/loss': 0.4, 'train/grad_norm': 0.5, 'train/step': 3}}\n"
    f"{MANAGER}eval 1: {{'eval/aime': 0.1, 'eval/aime-truncated_ratio': 0.5}}\n"
)


def test_slime_with_several_steps_per_batch(tmp_path: Path) -> None:
    run = opened(tmp_path, SLIME)
    assert values(run, "train/loss") == {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}
    assert values(run, "train/critic-value_loss") == {1: 3.0}
    assert math.isnan(values(run, "train/grad_norm")[0])
    assert values(run, "rollout/raw_reward") == {0: 0.25, 2: 0.5}
    assert values(run, "rollout/response_len/mean") == {0: 277.7}
    assert values(run, "eval/aime", "eval") == {0: 0.07, 3: 0.1}
    assert "train/step" not in run.metrics().names()
    assert run.info.trainer == "slime"
    (note,) = (note for note in run.facts.notes if "2 optimizer steps" in note)
    assert "step N x 2" in note


def test_slime_with_one_step_per_batch_needs_no_word(tmp_path: Path) -> None:
    text = "".join(
        f"x.py:1 - rollout {n}: {{'rollout/raw_reward': {n / 10}}}\nx.py:2 - step {n}: {{'train/loss': {n / 4}}}\n"
        for n in range(4)
    )
    run = opened(tmp_path, text)
    assert values(run, "rollout/raw_reward") == {0: 0.0, 1: 0.1, 2: 0.2, 3: 0.3}
    assert len(run.facts.notes) == 1


def test_slime_at_no_fixed_ratio_keeps_both_counts(tmp_path: Path) -> None:
    text = (
        SLIME.replace("step 2:", "step 5:").replace("step 3:", "step 6:")
        + "rollout 2: {'rollout/raw_reward': 0.7}\nstep 7: {'train/loss': 1.0}\n"
    )
    run = opened(tmp_path, text)
    assert list(values(run, "rollout/raw_reward")) == [0, 1, 2]
    assert any("at no fixed ratio" in note for note in run.facts.notes)


def test_roll(tmp_path: Path) -> None:
    head = "[2025-01-01 00:00:00] [tracking.py (161)] [INFO] [DRIVER 0 / 1][PID 12] metrics_tag: "
    text = (
        'metrics: {"critic/score/mean": 7}\n'
        f'{head}{{"step": 0, "metrics": {{"critic/score/mean": 0.5, "actor/lr": 1e-06, "tag": "x", "y": NaN}}}}\n'
        f'(DRIVER pid=3) {head}{{"step": 1, "metrics": {{"critic/score/mean": 0.75, "actor/lr": 1e-06}}}} [repeated 2x]\n'
        f'{head}{{"step": 2, "metrics": {{"critic/sc'
    )
    run = opened(tmp_path, text)
    assert values(run, "critic/score/mean") == {0: 0.5, 1: 0.75}
    assert math.isnan(values(run, "y")[0])
    assert run.info.trainer == "roll"


def test_openrlhf(tmp_path: Path) -> None:
    head = "(PPOTrainer pid=1) INFO 01-02 03:04:05 ppo_trainer.py:547] "
    text = (
        "Episode [1/20]:   0%|          | 0/500 [00:00<?, ?it/s]\n"
        f"{head}✨ Global step 1: {{'policy_loss': 0.0, 'reward': 0.5, 'actor_lr': 5e-07}}\n"
        f"{head}Global step 2: {{'policy_loss': -0.1, 'reward': 0.75, 'actor_lr': 5e-07}}\n"
        f"{head}✨ Evaluation completed in 0:00:12, global_step 2, eval_metrics: {{'eval_gsm8k_pass1': 0.25}}\n"
    )
    run = opened(tmp_path, text)
    assert values(run, "reward") == {1: 0.5, 2: 0.75}
    assert values(run, "eval_gsm8k_pass1", "eval") == {2: 0.25}
    assert run.info.trainer == "openrlhf"


def test_minimind(tmp_path: Path) -> None:
    grpo = "Reward: {}, KL_ref: -0.0010, Adv Std: 0.9000, Adv Mean: 0.0000, Actor Loss: 0.0100, Avg Response Len: 120.50, "
    text = "所加载Model可训练参数: 25.830 百万\nEpoch [1/2]: 跳过前3个step\n" + "".join(
        f"Epoch:[{epoch}/2]({step}/3), {grpo.format(reward)}Learning Rate: 0.00000030\n"
        for epoch, step, reward in [(1, 1, "0.1200"), (1, 3, "nan"), (2, 1, "-0.2500")]
    )
    run = opened(tmp_path, text)
    rewards = values(run, "reward")
    assert list(rewards) == [1, 3, 4]
    assert (rewards[1], rewards[4]) == (0.12, -0.25)
    assert math.isnan(rewards[3])
    assert values(run, "learning_rate")[1] == 3e-07
    assert set(run.metrics().names()) == {
        "reward", "kl_ref", "advantages_std", "advantages_mean", "policy_loss", "avg_response_len", "learning_rate",
    }  # fmt: skip
    assert run.info.trainer == "minimind"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (
            "Epoch:[1/1](7/9), Reward: 0.1, KL_ref: 0.2, Approx KL: 0.3, ClipFrac: 0.04, Critic Loss: 0.5, Actor LR: 3e-7",
            "approx_kl",
            0.3,
        ),
        (
            "Epoch:[1/1](7/9), Reward:0.1, KL:0.2, GrpStd:0.5, AdvStd:0.9, Loss:0.01, AvgLen:12.00, AdvMean:0.0, LR:1e-7",
            "kl_ref",
            0.2,
        ),
        (
            "Epoch: 1, Step: 7/9, Actor Loss: 0.1, Critic Loss: 0.2, Reward: 0.3, KL: 0.4, KL_ref: 0.5, Actor LR: 3e-7",
            "approx_kl",
            0.4,
        ),
        ("Epoch:[1/1](7/9) loss:2.500 lr:0.000100000000 epoch_Time:12.0min:", "loss", 2.5),
        (
            "Epoch:[1/1](7/9), loss: 2.5, dpo_loss: 0.69, aux_loss: 0.0, learning_rate: 0.0001, epoch_time: 1.2min",
            "dpo_loss",
            0.69,
        ),
    ],
)
def test_minimind_in_its_other_forms(tmp_path: Path, line: str, name: str, value: float) -> None:
    assert values(opened(tmp_path, f"{line}\n"), name) == {7: value}


def test_prime_rl(tmp_path: Path) -> None:
    text = (
        "\x1b[2m04:57:44\x1b[0m \x1b[32mSUCCESS\x1b[0m \x1b[1mStep 1 | 13m 16s | Reward 0.5000 | "
        "Trainable 64/64 (100.0%) | Turns 31.1 | Branches 1.0 | Max Off-Policy 2 | "
        "Error 0.0% | Cancelled 0.0% | Truncation 12.5%\x1b[0m\n"
        "05:02:21 SUCCESS Step 1 |   9.3s | Loss -0.0003 | Entropy 0.3717 | Mismatch KL 0.0249 | Grad. Norm 0.0560 | "
        "LR 1.00e-06 | Throughput 8712 tokens/s | MFU 5.4% | Peak Mem. 89.6 GiB\n"
        "05:02:22 SUCCESS Step 2 | Time: 289.52s | Loss: -0.0036 | Entropy: 1.0338 | Mismatch KL: nan\n"
        "05:02:22   DEBUG Micro Step 2/3 | Loss 9.0 | Entropy 9.0\n"
        "05:02:22 SUCCESS Evaluated math500 (Step 2) | Policy v2 |   1.2s | Reward 0.7500 | Turns 1.0 | "
        "Error 0.0% | Truncation 0.0%\n"
    )
    run = opened(tmp_path, text)
    assert values(run, "loss/mean") == {1: -0.0003, 2: -0.0036}
    assert values(run, "optim/grad_norm") == {1: 0.056}
    assert values(run, "optim/lr") == {1: 1e-06}
    assert math.isnan(values(run, "mismatch_kl/all/mean")[2])
    assert values(run, "train/agg/effective/reward/mean") == {1: 0.5}
    assert values(run, "train/agg/effective/is_truncated/mean") == {1: 0.125}
    assert values(run, "eval/math500/effective/reward/mean", "eval") == {2: 0.75}
    assert run.info.trainer == "prime-rl"


def nemo_block(epoch: int, step: int, loss: float) -> str:
    heading = "=" * 25
    opening = f"\n{heading} Epoch {epoch}/2 {heading}\n" if step == 1 else ""
    return (
        f"{opening}\n{heading} Step {step}/2 {heading}\n▶ Preparing batch...\n\n📊 Training Results:\n  • Loss: {loss:.4f}\n"
        f"  • Generation KL Error: 0.0010\n  • Avg Reward: {loss * 2:.4f}\n  • Mean Generation Length: 201.2197\n\n⏱️  Timing:\n"
        "  • Total step time: 35.70s\n  • generation: 4.95s (13.9%)\n"
    )


def test_nemo_rl_counts_on_over_the_epochs(tmp_path: Path) -> None:
    validation = (
        "▶ Starting validation at step 2...\n\n📊 Validation Results:\n    • Accuracy: 0.2500\n"
        "    • Average response length: 100.1 tokens\n"
        "    • Samples processed: 10\n\n  ⏱️  Validation Timing:\n    • Total validation time: 3.00s\n"
    )
    blocks = [nemo_block(1, 1, 0.1), nemo_block(1, 2, 0.2), validation, nemo_block(2, 1, 0.3), nemo_block(2, 2, 0.4)]
    run = opened(tmp_path, "".join(blocks))
    assert values(run, "train/loss") == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert values(run, "train/reward") == {1: 0.2, 2: 0.4, 3: 0.6, 4: 0.8}
    assert values(run, "validation/accuracy", "eval") == {2: 0.25}
    assert run.info.trainer == "nemo-rl"


def test_areal(tmp_path: Path) -> None:
    text = (
        "│ rollout/reward │ 9.9990e+00 │\n"
        "\x1b[37m(AReaL)\x1b[0m 20260814-01:00:00.000 StatsLogger INFO: Epoch 1/2 Step 1/23 Train step 1/46 done.\n"
        "(AReaL) 20260814-01:00:00.000 StatsLogger INFO: Stats (1/1):\n"
        "╒══════════════════╤════════════╤══════════════════════════════╤════════════╕\n"
        "│ rollout/reward   │ 5.0000e-01 │ ppo_actor/update/entropy/avg │ 2.2000e-01 │\n"
        "├──────────────────┼────────────┼──────────────────────────────┼────────────┤\n"
        "│ ppo_actor/update/grad_norm │ nan │                    │            │\n"
        "╘══════════════════╧════════════╧══════════════════════════════╧════════════╛\n"
        "(AReaL) 20260814-01:01:00.000 StatsLogger INFO: Epoch 1/2 Step 2/23 Train step 2/46 done.\n"
        "│ rollout/reward   │ 6.0000e-01 │ ppo_actor/update/entropy/avg │ -2.1000e-01 │\n"
    )
    run = opened(tmp_path, text)
    assert values(run, "rollout/reward") == {0: 0.5, 1: 0.6}
    assert values(run, "ppo_actor/update/entropy/avg") == {0: 0.22, 1: -0.21}
    assert math.isnan(values(run, "ppo_actor/update/grad_norm")[0])
    assert run.info.trainer == "areal"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (SLIME, "slime-console"),
        ("x: Global step 1: {'policy_loss': 0.0, 'reward': 0.5}\n", "openrlhf-console"),
        ("Epoch:[1/2](1/3), Reward: 0.1, KL_ref: 0.2\n", "minimind-console"),
        ("S Step 1 | 9.3s | Loss 0.1 | Entropy 0.2\n", "prime-rl-console"),
        (nemo_block(1, 1, 0.5), "nemo-rl-console"),
        ('metrics_tag: {"step": 0, "metrics": {"a": 1}}\n', "roll-console"),
    ],
)
def test_each_is_recognised_for_what_it_is(tmp_path: Path, content: str, name: str) -> None:
    assert importer_of(tmp_path, content) == (name, Fit.SIGNATURE)
