"""The manager: takes sessions, queues them fairly, places them and follows every change."""
