"""Services for administrators and nodes: accounts, the fleet, quotas, enrolment."""
