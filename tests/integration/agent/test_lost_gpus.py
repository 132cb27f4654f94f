"""A GPU that is lost while the agent runs: the manager learns of it, and when it is back."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from retinue.agent.resources import gpus
from retinue.agent.v1 import agent_service_pb2 as pb
from tests.integration.agent.conftest import Agent
from tests.support.nvml import Nvml

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.agent.settings import Settings
    from tests.integration.agent.manager_side import Conversation, Manager

LOST = pb.NODE_CONDITION_TYPE_DEVICE_LOST


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    nvml = Nvml([("GPU-a", 0, 80), ("GPU-b", 0, 80)])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(gpus, "INTERVAL", 0.05)
    return nvml


@pytest.fixture
async def agent(nvml: Nvml, settings: Settings, manager: Manager) -> AsyncIterator[Agent]:
    agent = Agent(replace(settings, slots={**settings.slots, "cuda.device": 8000}), manager)
    await agent.start()
    yield agent
    await agent.stop()


async def test_a_gpu_that_is_lost_leaves_the_offer_and_comes_back(agent: Agent, nvml: Nvml) -> None:
    async def offered(gpu_count: int) -> Conversation:
        """Converses until so many GPUs are offered: each change of the offer begins the stream again."""
        while True:
            conversation = await agent.converse()
            if conversation.welcome.capacity["cuda.device"] == gpu_count * 1000:
                return conversation

    assert not (await offered(2)).conditions
    nvml.lost = {"GPU-b"}
    conversation = await offered(1)
    await conversation.until(lambda: [condition.type for condition in conversation.conditions] == [LOST])
    assert "GPU-b does not answer" in conversation.conditions[0].message
    nvml.lost = set()
    conversation = await offered(2)
    await conversation.until(lambda: not conversation.conditions)
