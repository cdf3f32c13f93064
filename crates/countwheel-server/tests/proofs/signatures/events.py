"""Says of each delivery on standard input, one JSON object a line, which attributes it has as an event."""

import json
import sys

from cloudevents.core.bindings.http import HTTPMessage, from_http_event

for line in sys.stdin:
    case = json.loads(line)
    message = HTTPMessage(headers=case["headers"], body=case["body"].encode())
    attributes = from_http_event(message).get_attributes()
    attributes["time"] = attributes["time"].isoformat()
    print(json.dumps(attributes, sort_keys=True))
