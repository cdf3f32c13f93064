"""Says of each delivery on standard input, one JSON object a line, whether its signature is right."""

import json
import sys

from standardwebhooks import Webhook, WebhookVerificationError

for line in sys.stdin:
    case = json.loads(line)
    try:
        Webhook(case["secret"]).verify(case["body"], case["headers"], json_parse=False)
        print("right")
    except WebhookVerificationError:
        print("wrong")
