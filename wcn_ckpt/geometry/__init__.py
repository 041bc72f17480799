"""Points and voxels in batches of clouds."""

from __future__ import annotations

from wcn_ckpt.geometry.base import Geometry
from wcn_ckpt.geometry.combine import cat, sparse_cat, sparse_unbind
from wcn_ckpt.geometry.coordinates import IntCoords, RealCoords
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.geometry.points import Points
from wcn_ckpt.geometry.serialization import (
    POINT_ORDERING,
    WARPCONVNET_ORDERS,
    PointOrdering,
    Serialization,
    serialize,
)
from wcn_ckpt.geometry.voxelize import ToUnique, points_to_voxels
from wcn_ckpt.geometry.voxels import Voxels

__all__ = [
    "POINT_ORDERING",
    "WARPCONVNET_ORDERS",
    "CatFeatures",
    "Geometry",
    "IntCoords",
    "PointOrdering",
    "Points",
    "RealCoords",
    "Serialization",
    "ToUnique",
    "Voxels",
    "cat",
    "points_to_voxels",
    "serialize",
    "sparse_cat",
    "sparse_unbind",
]
