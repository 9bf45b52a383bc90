"""A shape per lane beside its colour, the same on its panel and in every plot."""

from __future__ import annotations

import math
from functools import cache

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPolygonF

from specview.gui.parts import theme

DASHES: tuple[tuple[float, ...], ...] = ((4.0, 3.0), (), (), (9.0, 3.0), (2.0, 2.0))
"""Dash pattern of each lane's curves, in pen widths; empty is solid. Plain is dashed."""


@cache
def marker(index: int) -> QPainterPath:
    """Return a lane's shape in a unit square around the origin: circle, square, triangle, diamond, star."""
    path = QPainterPath()
    match index % 5:
        case 0:
            path.addEllipse(QRectF(-0.5, -0.5, 1.0, 1.0))
        case 1:
            path.addRoundedRect(QRectF(-0.45, -0.45, 0.9, 0.9), 0.08, 0.08)
        case 2:
            path.addPolygon(QPolygonF([QPointF(0, -0.55), QPointF(0.56, 0.45), QPointF(-0.56, 0.45)]))
        case 3:
            path.addPolygon(QPolygonF([QPointF(0, -0.6), QPointF(0.6, 0), QPointF(0, 0.6), QPointF(-0.6, 0)]))
        case _:
            points = []
            for corner in range(10):
                radius = 0.6 if corner % 2 == 0 else 0.27
                angle = math.pi * corner / 5
                points.append(QPointF(radius * math.sin(angle), -radius * math.cos(angle)))
            path.addPolygon(QPolygonF(points))
    path.closeSubpath()
    return path


def paint_marker(painter: QPainter, index: int, centre: QPointF, size: float, colour: QColor | None = None) -> None:
    """Draw a lane's shape, in its colour unless another is given."""
    lanes = theme.current().lane_colors
    painter.save()
    painter.translate(centre)
    painter.scale(size, size)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(lanes[index % len(lanes)]) if colour is None else colour)
    painter.drawPath(marker(index))
    painter.restore()
