"""Gymnasium's CarRacing with faster drawing: the same images, to the pixel, in less than half of the time of a step.

Gymnasium transforms the corners of all 700 to 900 polygons of a track in Python, draws many that are outside of the
window, and loads a font in every step. Here the corners are transformed as one array, and what cannot be seen is not
drawn.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pygame
from pygame import gfxdraw

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Box2D's types: as an error it would crash the interpreter
    from gymnasium.envs.box2d import car_racing

Array = np.ndarray
Polygons = tuple[Array, Array]
"""The coordinates x and y of the corners of polygons, [corners, num] each."""

_SIZE = (car_racing.WINDOW_W, car_racing.WINDOW_H)
_MARGIN = 2.0  # pixels, for the smoothed edges of polygons


def _polygons(corners: list[Any]) -> Polygons:
    array = np.array(corners, float).reshape(-1, 4, 2)
    return np.ascontiguousarray(array[..., 0].T), np.ascontiguousarray(array[..., 1].T)


def _grass() -> Polygons:
    """Return all patches of grass."""
    side, places = car_racing.GRASS_DIM, range(-20, 20, 2)
    corners = ((side, 0), (0, 0), (0, side), (side, side))
    return _polygons([[(side * x + dx, side * y + dy) for dx, dy in corners] for x in places for y in places])


_GRASS = _grass()
_FIELD = _polygons(
    [[(car_racing.PLAYFIELD * x, car_racing.PLAYFIELD * y) for x, y in ((1, 1), (1, -1), (-1, -1), (-1, 1))]]
)


class CarRacing(car_racing.CarRacing):
    """Gymnasium's CarRacing with faster drawing."""

    surf: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._drawn_road: Any = None  # the list of polygons that `_road` was made from
        self._road = _polygons([])
        self._font: Any = None
        self._window = pygame.Surface(_SIZE)

    def _render(self, mode: str) -> Any:
        """Draw the state, as Gymnasium does."""
        if mode != "state_pixels" or "t" not in self.__dict__:
            return super()._render(mode)
        if self._font is None:
            pygame.font.init()
            self._font = pygame.font.Font(pygame.font.get_default_font(), 42)
        width, height, car = car_racing.WINDOW_W, car_racing.WINDOW_H, self.car
        assert car is not None
        self.surf, angle = self._window, -car.hull.angle
        zoom = 0.1 * car_racing.SCALE * max(1 - self.t, 0) + car_racing.ZOOM * car_racing.SCALE * min(self.t, 1)
        scroll = pygame.math.Vector2((-car.hull.position[0] * zoom, -car.hull.position[1] * zoom)).rotate_rad(angle)
        translation = (width / 2 + scroll[0], height / 4 + scroll[1])
        self._render_road(zoom, translation, angle)
        car.draw(self.surf, zoom, translation, angle, False)
        self.surf = pygame.transform.flip(self.surf, False, True)
        self._render_indicators(width, height)
        text = self._font.render(f"{self.reward:04.0f}", True, (255, 255, 255), (0, 0, 0))
        self.surf.blit(text, text.get_rect(center=(60, height - height * 2.5 / 40.0)))
        return self._create_image_array(self.surf, (car_racing.STATE_W, car_racing.STATE_H))

    def _render_road(self, zoom: float, translation: tuple[float, float], angle: float) -> None:
        if self._drawn_road is not self.road_poly or self._road[0].shape[1] != len(self.road_poly):
            self._drawn_road = self.road_poly
            self._road = _polygons([[(x, y) for x, y in polygon] for polygon, _ in self.road_poly])
        field = _transform(_FIELD, zoom, translation, angle)
        if _covers_window(field):
            self.surf.fill(_color(self.bg_color))
        else:
            self.surf.fill(0)
            self._draw(_corners(field, [0])[0], self.bg_color)
        grass = _transform(_GRASS, zoom, translation, angle)
        for polygon in _corners(grass, _visible(grass)):
            self._draw(polygon, self.grass_color)
        road = _transform(self._road, zoom, translation, angle)
        visible = _visible(road)
        for index, polygon in zip(visible, _corners(road, visible), strict=True):
            self._draw(polygon, self.road_poly[index][1])

    def _draw(self, polygon: list[Any], color: Any) -> None:
        color = _color(color)
        gfxdraw.aapolygon(self.surf, polygon, color)
        gfxdraw.filled_polygon(self.surf, polygon, color)


def _color(color: Any) -> list[int]:
    return [int(part) for part in color]


def _transform(polygons: Polygons, zoom: float, translation: tuple[float, float], angle: float) -> Polygons:
    """Return polygons of the playfield as polygons of the window, with the operations of Gymnasium in their order."""
    cos, sin, (x, y) = math.cos(angle), math.sin(angle), polygons
    return (cos * x - sin * y) * zoom + translation[0], (sin * x + cos * y) * zoom + translation[1]


def _corners(polygons: Polygons, indices: list[int]) -> list[Any]:
    """Return the corners of some polygons."""
    return np.stack([part[:, indices].T for part in polygons], -1).tolist()


def _visible(polygons: Polygons) -> list[int]:
    """Return the indices of polygons that may overlap the window, and that Gymnasium would draw."""
    overlaps: Any = True
    near: Any = True
    for part, size in zip(polygons, _SIZE, strict=True):
        overlaps = overlaps & (part.max(0) >= -_MARGIN) & (part.min(0) <= size + _MARGIN)
    indices = np.flatnonzero(overlaps)
    for part, size in zip(polygons, _SIZE, strict=True):
        corners = part[:, indices]
        near = near & (corners >= -car_racing.MAX_SHAPE_DIM) & (corners <= size + car_racing.MAX_SHAPE_DIM)
    return indices[near.any(0)].tolist()


def _covers_window(field: Polygons) -> bool:
    """Whether a rectangle has the whole window inside, with a margin."""
    corners = np.array([(x, y) for x in (-_MARGIN, _SIZE[0] + _MARGIN) for y in (-_MARGIN, _SIZE[1] + _MARGIN)])
    first, origin, second, _ = np.concatenate(field, 1)
    inside = np.linalg.solve(np.stack([first - origin, second - origin], -1), (corners - origin).T)
    return bool(((inside > 0) & (inside < 1)).all())
