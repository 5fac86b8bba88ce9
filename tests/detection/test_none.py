"""Nobody is ever suspected."""

from purifl.detection.none import NoDetection
from watching import setting


def test_no_detection_has_no_scores():
    assert NoDetection().scores({}, *setting()[:2], None, None) is None
