from __future__ import annotations

import json
from dataclasses import replace

from tunesmith.tasks.samples import Sample


def test_a_sample_survives_json_before_and_after_training() -> None:
    before = Sample("Once upon\n", 'a "time" é')
    after = replace(before, after="there was")
    for sample in (before, after):
        assert Sample(**json.loads(json.dumps(sample.to_json()))) == sample
    assert before.to_json() == {"prompt": "Once upon\n", "before": 'a "time" é', "after": None}
