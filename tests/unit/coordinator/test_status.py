import pytest

from txstorm.coordinator.machine import AttemptStatus
from txstorm.errors import TxstormError

PROCESSING, PROCESSED, COMMITTING = AttemptStatus
LEGAL = {(PROCESSING, PROCESSED), (PROCESSED, COMMITTING), (COMMITTING, PROCESSED)}


@pytest.mark.parametrize("before", AttemptStatus)
@pytest.mark.parametrize("after", AttemptStatus)
def test_only_legal_transitions(before, after):
    if (before, after) in LEGAL:
        assert before.to(after) is after
    else:
        with pytest.raises(TxstormError, match=f"in status {before.value} .* got {after.value}"):
            before.to(after)
