"""A widget as the bytes of a picture or a drawing."""

from __future__ import annotations

from PySide6.QtCore import QBuffer, QByteArray, QIODevice
from PySide6.QtGui import QColor, QImage, QImageWriter, QPainter
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QWidget

from specview.gui.parts import theme

SCALE = 2
"""Pixels of a PNG per pixel of the screen."""


def as_png(widget: QWidget) -> bytes:
    """Return the widget as it looks, as a PNG of twice its size."""
    image = QImage(widget.size() * SCALE, QImage.Format.Format_RGB32)
    image.setDevicePixelRatio(SCALE)
    image.fill(QColor(theme.current().panel))
    widget.render(image)
    data, buffer = _buffer()
    QImageWriter(buffer, QByteArray(b"png")).write(image)
    return bytes(data.data())


def as_svg(widget: QWidget, title: str) -> bytes:
    """Return the widget as it looks, as an SVG with this title."""
    data, buffer = _buffer()
    made = QSvgGenerator()
    made.setOutputDevice(buffer)
    made.setSize(widget.size())
    made.setViewBox(widget.rect())
    made.setTitle(title)
    painter = QPainter(made)
    painter.fillRect(widget.rect(), QColor(theme.current().panel))
    widget.render(painter, widget.rect().topLeft())
    painter.end()
    return bytes(data.data())


def _buffer() -> tuple[QByteArray, QBuffer]:
    data = QByteArray()
    buffer = QBuffer(data)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    return data, buffer
