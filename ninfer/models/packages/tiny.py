"""Facts of the test models; any small geometry, which travels in ``model/config.json``."""

from typing import Final

from ninfer.models.package import WEIGHTS_IDS, Family, ModelPackage

TINY_DENSE: Final = ModelPackage("tiny-dense", Family.DENSE, None, WEIGHTS_IDS, is_test_model=True)
TINY_MOE: Final = ModelPackage("tiny-moe", Family.MOE, None, WEIGHTS_IDS, is_test_model=True)
