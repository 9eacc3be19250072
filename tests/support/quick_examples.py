"""Settings of properties that are many and short: half as many examples as others.

Imported by tests themselves and not by any `conftest.py`: what they are half of is known when
pytest has read its options.
"""

from hypothesis import settings

if settings.get_current_profile_name() != "shared-machine":
    raise ImportError("the profile of tests/conftest.py is not there yet")

QUICK = settings(max_examples=settings().max_examples // 2)
