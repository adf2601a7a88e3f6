"""Teach a foundation model a language: raw text in, an adapted model and a report out."""

__version__ = "0.1.0"
