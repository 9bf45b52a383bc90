"""`plain`: no draft. The target alone, one token a pass, is what every other method is measured against."""

from __future__ import annotations

from specview.drafting.method import MethodInfo

BASELINE = "plain"
"""The baseline's name, in lanes, files and tables."""

METHOD = MethodInfo(
    BASELINE, "plain", "The target alone, one token a pass: the measured baseline.", None, family="baseline"
)
