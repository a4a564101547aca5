import pytest
from bad_input_cases import check_says, unchanged
from bad_topologies import CASES, make

from txstorm.errors import TopologyError


@pytest.mark.parametrize("name", CASES, ids=ascii)
def test_is_refused_when_it_is_built(name, in_tmp):
    with unchanged(in_tmp), pytest.raises(TopologyError) as caught:
        make(name)
    check_says(caught.value, CASES[name][1])
    assert len(caught.value.faults) == 1
