"""A session of two kernels on two nodes."""

from __future__ import annotations

from retinue.agent.network.core.topology import Member

SESSION = "0190c8f4-7d2e-7c3a-9b1f-2a5d8e4c6f01"
MAIN = Member("main-kernel", "main1", "10.128.0.2", "0a:58:0a:80:00:02", "", local=True)
SUB = Member("sub-kernel", "sub1", "10.128.0.3", "0a:58:0a:80:00:03", "192.0.2.2", local=False)
