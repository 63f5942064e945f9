"""Analyses: functions from a Func to a frozen result."""
